"""The overview pages of the report. They open from a folder, without a network."""

from __future__ import annotations

import json
from functools import cache

from harness.report.model.frame import frame_of
from harness.report.model.marks import Mark
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import clip, counted, duration, moment
from harness.report.pages.changes_page import change_summary, changes_page
from harness.report.pages.chinese import grammar, ordered_forms, reason_words, written_forms
from harness.report.pages.convergence_page import convergence_page
from harness.report.pages.first_screen import shown_changes, shown_hosts
from harness.report.pages.grid import grid_axes, shortened
from harness.report.pages.numerics_page import numerics_page
from harness.report.pages.owners_page import owners_page
from harness.report.pages.page_templates import PageWriter, anchor_of, environment, resource
from harness.report.pages.patches_page import patches_page
from harness.report.pages.suites_page import suites_page
from harness.report.pages.time_page import time_page
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES

STATIC_ROWS = 300
FIRST_ROWS = 60
ATTENTION_ROWS = 8
#: More kinds of hosts are folded.
HOST_ROWS = 12
#: The facts of a run that are words of ours; the others are names and commands.
COUNTED_FACTS = frozenset({"planned", "executed", "reused"})
STAGES = {
    "static": "Derived from files: versions resolve, patches apply, recipes fit. Nothing was executed.",
    "built": "The environment was built, and every installed file was compared with its record.",
    "cpu": "Programs of the stack ran on the CPU.",
    "simulated": "Programs of the stack ran with the real packages on a simulated NPU.",
    "hardware": "Programs of the stack ran on a real NPU.",
}
QUERIES = {
    Mark.FAIL: "unexpected-fail",
    Mark.KNOWN_FAIL: "known",
    Mark.UNEXPECTED_PASS: "unexpected-pass",
}
ASSETS = ("report.css", "query.js", "language.js", "help.js", "grid.js", "report.js", "runs.js", "find.js")


def render_overviews(model: ReportModel, writer: PageWriter) -> None:
    """Write all pages except those of cells, with their styles and scripts.

    `publish.cell_rows` writes the pages of cells. OSError if a file cannot be written.
    """
    for name in ASSETS:
        writer.write(f"assets/{name}", resource("assets", name))
    writer.write("assets/words.js", f"window.NPU_MATRIX_WORDS={_pages_words()};\n")
    writer.write("data/reasons.zh.js", f"window.NPU_MATRIX_REASONS={_reasons()};\n")
    writer.write("index.html", _index(model, writer))
    writer.write("changes.html", changes_page(model, writer))
    writer.write("time.html", time_page(model, writer))
    writer.write("owners.html", owners_page(model, writer))
    writer.write("patches.html", patches_page(model, writer))
    writer.write("numerics.html", numerics_page(model, writer))
    writer.write("convergence.html", convergence_page(model, writer))
    writer.write("suites.html", suites_page(model, writer))


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def _pages_words() -> str:
    words = json.loads(resource("words", "chinese.json"))
    return _as_json({**words, "patterns": written_forms(words["patterns"]), "grammar": grammar()})


@cache
def _reasons() -> str:
    words = reason_words()
    texts = {english: chinese for english, chinese in words.items() if "{" not in english}
    return _as_json({"words": texts, "patterns": written_forms(ordered_forms(words))})


def _index(model: ReportModel, writer: PageWriter) -> str:
    rows = model.rows if len(model.rows) <= STATIC_ROWS else model.rows[:FIRST_ROWS]
    by_id = {row.cell.id: row for row in model.rows}
    short = shortened(model)
    hosts, more_hosts = shown_hosts(model, writer, short)
    return (
        environment(writer, up="")
        .get_template("index.html")
        .render(
            model=model,
            rows=rows,
            most_hosts=HOST_ROWS,
            counted_facts=COUNTED_FACTS,
            incomplete=_incomplete(model),
            attention=model.attention[:ATTENTION_ROWS],
            titles=model.names,
            href=lambda cell, check: f"cells/{by_id[cell].slug}.html#{anchor_of(check)}",
            anchors={check.name: anchor_of(check.name) for check in model.checks},
            queries={mark: QUERIES.get(mark, mark.value) for mark in Mark},
            frame=frame_of(
                model.counts, exit_code=model.inputs.run.exit_code, selection=model.inputs.run.selection
            ),
            facts=_run_facts(model),
            hosts=hosts,
            more_hosts=more_hosts,
            changed=shown_changes(model),
            axes=grid_axes(model),
            short=short,
            stage_text=STAGES,
            turns=change_summary(model),
            views=_other_views(model),
        )
    )


def _other_views(model: ReportModel) -> list[tuple[str, str, str]]:
    """The views that are pages of their own and have something to show: their link, rows and columns."""
    suites = any(check.name in SUITE_CHECK_NAMES for check in model.checks)
    views = (
        ("patches.html#survival", "patches", "commits", model.inputs.survival is not None),
        ("patches.html#names", "names", "versions", model.inputs.names is not None),
        ("suites.html#cells", "suites", "cells", suites),
    )
    return [(page, rows, columns) for page, rows, columns, shown in views if shown]


def _incomplete(model: ReportModel) -> str:
    """Which planned checks have no outcome, in one sentence; "" if all have one."""
    if not model.missing:
        return ""
    shown = ", ".join(f"`{clip(check, 60)}` of `{clip(cell, 80)}`" for cell, check in model.missing[:3])
    has = "check has" if len(model.missing) == 1 else "checks have"
    return f"Incomplete: {len(model.missing):,} planned {has} no outcome, for example {shown}."


def _run_facts(model: ReportModel) -> list[tuple[str, str]]:
    run = model.inputs.run
    facts = [
        ("profile", run.profile),
        ("selection", run.selection),
        ("commit", run.revision[:12] + ("+" if run.revision.endswith("+") else "")),
        ("cells", f"{len(model.rows):,}"),
        ("planned", counted(model.planned, "check")),
        ("executed", counted(run.executed, "task")),
        ("reused", counted(run.reused, "task")),
        ("started", moment(run.started) if run.started else ""),
        ("took", duration(run.seconds) if run.seconds else ""),
        ("command", run.command),
    ]
    return [(name, value) for name, value in facts if value]
