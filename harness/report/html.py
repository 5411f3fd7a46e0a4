"""The report as pages that open from a folder: one grid, one page per cell, no network, hardly any script."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from harness.digest import digest_bytes
from harness.errors import EXIT_BAD_INPUT, EXIT_CODES, EXIT_OK, EXIT_UNEXPECTED
from harness.report import svg
from harness.report.figures import figures
from harness.report.grid import grid_script
from harness.report.inputs import ArtifactInput
from harness.report.logs import read_artifact, read_log
from harness.report.marks import EVIDENCE, RAN, STYLES, Mark, mark_of
from harness.report.measures import Chart, Facts, Table, scalar
from harness.report.model import ReportModel, Result, Row
from harness.report.text import clip, duration, file_name, iso, moment, number, size, visible

PARALLEL_FROM = 2_000
MAX_WORKERS = 8
STATIC_ROWS = 300
FIRST_ROWS = 60
ATTENTION_ROWS = 8
HARD_LIMIT = 20_000
TOOLTIP = 200
QUERIES = {
    Mark.FAIL: "unexpected-fail",
    Mark.KNOWN_FAIL: "known",
    Mark.UNEXPECTED_PASS: "unexpected-pass",
}
EXIT_WORDS = {0: "as expected", 1: "unexpected", 2: "bad input", 3: "nothing selected", 130: "interrupted"}
OPEN_LOGS = (Mark.FAIL, Mark.ERROR, Mark.INCONCLUSIVE)
ASSETS = ("report.css", "report.js")


def render_html(model: ReportModel, folder: Path) -> list[Path]:
    """Write the pages into `folder` (which exists) and return what was written. OSError when it cannot be."""
    writer = Writer(folder)
    for name in ASSETS:
        writer.write(f"assets/{name}", _resource("assets", name))
    writer.write("data/grid.js", grid_script(model))
    writer.write("index.html", _index(model, writer))
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


class Writer:
    """Writes files below one folder and remembers them; texts and files are stored once, by content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self._stored: set[str] = set()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file; parents are made as needed."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        path.write_bytes(data)
        self.written.append(path)

    def store(self, name: str, content: str | bytes) -> str:
        """Write a file named by its content, unless it is there already, and return its name."""
        if name not in self._stored:
            self._stored.add(name)
            self.write(name, content)
        return name

    def spill(self, text: str, up: str) -> str:
        """Store a text too long for a page and return the link to it."""
        digest = digest_bytes(text.encode("utf-8", "backslashreplace"))[:16]
        return up + self.store(f"text/{digest}.txt", text)


@cache
def anchor_of(check: str) -> str:
    """The anchor of a check on its cell's page."""
    return "check-" + file_name(check)


def _index(model: ReportModel, writer: Writer) -> str:
    rows = model.rows if len(model.rows) <= STATIC_ROWS else model.rows[:FIRST_ROWS]
    by_id = {row.cell.id: row for row in model.rows}
    return (
        _environment(writer, up="")
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
        env = _environment(writer, up="../")
        self._page = env.get_template("cell.html")
        self._stripcheck = env.get_template("macros.html").module.stripcheck  # type: ignore[attr-defined]
        self._tiles: dict[tuple[object, ...], Markup] = {}

    def render(self, row: Row) -> str:
        """The page of one cell."""
        return self._page.render(
            model=self._model,
            row=row,
            strip=self._strip(row),
            sections=[self._section(row, result) for result in row.results.values()],
            open_marks=OPEN_LOGS,
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


def _environment(writer: Writer, *, up: str) -> jinja2.Environment:
    """Templates with autoescape; whatever is printed has its hidden characters made visible first."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(partial(_resource, "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
    )

    def long(value: Any, limit: int = 1500) -> Any:
        text = str(value)
        if len(text) <= limit:
            return value
        link = Markup(' <a class="spill" href="{}">whole text</a>').format(writer.spill(text, up))
        return escape(visible(clip(text, limit))) + link

    env.filters |= {
        "long": long,
        "clip": lambda value, limit=300: clip(str(value), limit),
        "moment": moment,
        "iso": iso,
        "duration": duration,
        "size": size,
        "scalar": scalar,
        "chart": svg.chart_svg,
        "chart_small": partial(svg.chart_svg, small=True),
        "legend": svg.legend,
        "last": _last,
        "share": svg.share_bar,
        "tooltip": tooltip,
    }
    env.tests |= {
        "facts": lambda block: isinstance(block, Facts),
        "datatable": lambda block: isinstance(block, Table),
        "curves": lambda block: isinstance(block, Chart),
    }
    env.globals |= {
        "styles": STYLES,
        "evidence_styles": EVIDENCE,
        "marks": Mark,
        "ran": RAN,
        "mark_of": mark_of,
        "up": up,
    }
    return env


def tooltip(result: Result) -> str:
    """One line that says what a tile says, and the first reason of what is not a pass."""
    style = STYLES[result.mark]
    said = f"{result.facts.check}: {style.label}"
    if result.facts.evidence and result.mark in RAN:
        said += f" ({EVIDENCE[result.facts.evidence].label})"
    if result.facts.reasons and result.mark is not Mark.PASS:
        said += f". {result.facts.reasons[0]}"
    return clip(said, TOOLTIP)


def _last(chart: Any) -> str:
    values = chart.series[0].values
    return number(values[-1]) if values else ""


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(clip(value, HARD_LIMIT))


@cache
def _resource(folder: str, name: str) -> str:
    return resources.files(__package__).joinpath(folder, name).read_text(encoding="utf-8")
