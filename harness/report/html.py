"""The report as pages that open from a folder: one grid, one page per cell, no network, hardly any script."""

from __future__ import annotations

import multiprocessing
import os
import shlex
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.errors import EXIT_BAD_INPUT, EXIT_CODES, EXIT_OK, EXIT_UNEXPECTED
from harness.report.changes_page import changes_page, say_turns
from harness.report.convergence_page import convergence_page
from harness.report.figures import figures
from harness.report.grid import grid_script
from harness.report.inputs import ArtifactInput
from harness.report.logs import read_artifact, read_log, stored_name
from harness.report.marks import Mark
from harness.report.model import ReportModel, Result, Row
from harness.report.numerics_page import numerics_page
from harness.report.pages import Writer, anchor_of, environment, resource
from harness.report.patches_page import patches_page
from harness.report.patterns import PASSING
from harness.report.siblings import Family
from harness.report.text import duration, file_name, moment
from harness.settings import DEFAULT_PROFILE

PARALLEL_FROM = 2_000
MAX_WORKERS = 8
STATIC_ROWS = 300
FIRST_ROWS = 60
ATTENTION_ROWS = 8
QUERIES = {
    Mark.FAIL: "unexpected-fail",
    Mark.KNOWN_FAIL: "known",
    Mark.UNEXPECTED_PASS: "unexpected-pass",
}
EXIT_WORDS = {0: "as expected", 1: "unexpected", 2: "bad input", 3: "nothing selected", 130: "interrupted"}
OPEN_LOGS = (Mark.FAIL, Mark.ERROR, Mark.INCONCLUSIVE)
LOCK_FORMAT = ("--format", "dockerfile")
ASSETS = ("report.css", "report.js")


def render_html(model: ReportModel, folder: Path) -> list[Path]:
    """Write the pages into `folder` (which exists) and return what was written. OSError when it cannot be."""
    writer = Writer(folder)
    for name in ASSETS:
        writer.write(f"assets/{name}", resource("assets", name))
    writer.write("data/grid.js", grid_script(model))
    writer.write("index.html", _index(model, writer))
    writer.write("changes.html", changes_page(model, writer))
    writer.write("patches.html", patches_page(model, writer))
    writer.write("numerics.html", numerics_page(model, writer))
    writer.write("convergence.html", convergence_page(model, writer))
    workers = min(os.cpu_count() or 1, MAX_WORKERS) if len(model.rows) >= PARALLEL_FROM else 1
    if workers > 1 and "fork" in multiprocessing.get_all_start_methods():
        return writer.written + _pages_in_parallel(model, folder, workers)
    return writer.written + _pages(model, folder, 0, 1)


def _pages(model: ReportModel, folder: Path, first: int, step: int) -> list[Path]:
    """Write the page of every `step`-th cell from `first` on."""
    writer = Writer(folder)
    pages = CellPages(model, writer)
    for row in model.rows[first::step]:
        writer.write(f"cells/{row.slug}.html", pages.render(row))
    return writer.written


def _pages_in_parallel(model: ReportModel, folder: Path, workers: int) -> list[Path]:
    """As `_pages` for all cells, in forked processes, which have the model without copying it.

    Files that are named by their content may be written by several of them; the content is the same.
    """
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_inherit, initargs=(model,)) as pool:
        parts = [pool.submit(_inherited_pages, folder, first, workers) for first in range(workers)]
        return list(dict.fromkeys(path for part in parts for path in part.result()))


_inherited: list[ReportModel] = []


def _inherit(model: ReportModel) -> None:
    _inherited.append(model)


def _inherited_pages(folder: Path, first: int, step: int) -> list[Path]:
    return _pages(_inherited[0], folder, first, step)


def _index(model: ReportModel, writer: Writer) -> str:
    rows = model.rows if len(model.rows) <= STATIC_ROWS else model.rows[:FIRST_ROWS]
    by_id = {row.cell.id: row for row in model.rows}
    return (
        environment(writer, up="")
        .get_template("index.html")
        .render(
            model=model,
            rows=rows,
            attention=model.attention[:ATTENTION_ROWS],
            titles={cell: row.cell.title or cell for cell, row in by_id.items()},
            href=lambda cell, check: f"cells/{by_id[cell].slug}.html#{anchor_of(check)}",
            anchors={check.name: anchor_of(check.name) for check in model.checks},
            queries={mark: QUERIES.get(mark, mark.value) for mark in Mark},
            state=_state(model),
            facts=_run_facts(model),
            turns=say_turns(model),
        )
    )


def _state(model: ReportModel) -> dict[str, str]:
    code = model.run.exit_code
    if code is not None:
        kind = {EXIT_OK: "ok", EXIT_UNEXPECTED: "bad", EXIT_BAD_INPUT: "bad"}.get(code, "open")
        meaning = f"Exit code {code}: {EXIT_CODES.get(code, 'unknown')}."
        return {"kind": kind, "word": EXIT_WORDS.get(code, "incomplete"), "meaning": meaning}
    unexpected = model.counts.get(Mark.FAIL, 0) + model.counts.get(Mark.UNEXPECTED_PASS, 0)
    if unexpected:
        return {"kind": "bad", "word": EXIT_WORDS[EXIT_UNEXPECTED], "meaning": ""}
    if model.complete and model.planned:
        return {"kind": "ok", "word": EXIT_WORDS[EXIT_OK], "meaning": ""}
    return {"kind": "open", "word": "incomplete", "meaning": ""}


def _run_facts(model: ReportModel) -> list[tuple[str, str]]:
    run = model.run
    facts = [
        ("profile", run.profile),
        ("revision", run.revision),
        ("cells", f"{len(model.rows):,}"),
        ("planned", f"{model.planned:,} checks"),
        ("executed", f"{run.executed:,} tasks"),
        ("reused", f"{run.reused:,} tasks"),
        ("started", moment(run.started) if run.started else ""),
        ("took", duration(run.seconds) if run.seconds else ""),
        ("command", run.command),
    ]
    return [(name, value) for name, value in facts if value]


class CellPages:
    """Renders the pages of cells; what repeats from page to page is rendered once."""

    def __init__(self, model: ReportModel, writer: Writer) -> None:
        self._model = model
        self._writer = writer
        env = environment(writer, up="../")
        self._page = env.get_template("cell.html")
        self._stripcheck = env.get_template("macros.html").module.stripcheck  # type: ignore[attr-defined]
        self._family = Family(model)
        self._tiles: dict[tuple[object, ...], Markup] = {}

    def render(self, row: Row) -> str:
        """The page of one cell."""
        return self._page.render(
            model=self._model,
            row=row,
            strip=self._strip(row),
            sections=[self._section(row, result) for result in row.results.values()],
            exports=self._exports(row),
            lock_command=self._lock_command(row),
            open_marks=OPEN_LOGS,
        )

    def _exports(self, row: Row) -> list[tuple[str, str]]:
        return [
            (name, "../" + self._writer.store(f"exports/{row.slug}/{stored_name(name)}", text))
            for name, text in row.cell.exports.items()
        ]

    def _lock_command(self, row: Row) -> str:
        resolved = row.results.get("resolve")
        if resolved is None or resolved.mark not in PASSING:
            return ""
        run = self._model.run
        profile = ("--profile", run.profile) if run.profile not in {"", DEFAULT_PROFILE} else ()
        folder = f"build/{row.slug}"
        return shlex.join(
            ["npu-matrix", *run.options, *profile, "lock", row.cell.id, *LOCK_FORMAT, "--output", folder]
        )

    def _strip(self, row: Row) -> list[tuple[str, Markup]]:
        tiers = []
        for tier in self._model.tiers:
            tiles = [
                self._tile(row.results[check.name]) for check in tier.checks if check.name in row.results
            ]
            if tiles:
                tiers.append((tier.tier.value, Markup().join(tiles)))
        return tiers

    def _tile(self, result: Result) -> Markup:
        reason = result.facts.reasons[0] if result.facts.reasons else ""
        key = (result.facts.check, result.mark, result.facts.evidence, result.change, reason)
        if key not in self._tiles:
            self._tiles[key] = self._stripcheck(result, f"#{anchor_of(result.facts.check)}")
        return self._tiles[key]

    def _section(self, row: Row, result: Result) -> dict[str, Any]:
        facts = result.facts
        log = read_log(facts)
        whole = ""
        if log.whole:
            whole = "../" + self._writer.store(f"logs/{row.slug}.{file_name(facts.check)}.txt", log.whole)
        return {
            "result": result,
            "anchor": anchor_of(facts.check),
            "measured": figures(facts.measurements),
            "beside": self._family.of(row, result),
            "files": [self._file(artifact) for artifact in facts.artifacts],
            "log": {"lines": log.lines, "total": log.total, "skipped": log.skipped, "href": whole},
        }

    def _file(self, artifact: ArtifactInput) -> dict[str, Any]:
        file = read_artifact(artifact)
        href = (
            "../" + self._writer.store(f"files/{file.stored}", file.content)
            if file.content is not None
            else ""
        )
        return {"name": file.name, "size": file.size, "note": file.note, "href": href}
