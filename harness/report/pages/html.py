"""The overview pages of the report. They open from a folder, without a network."""

from __future__ import annotations

from pathlib import Path

from harness.errors import EXIT_BAD_INPUT, EXIT_CODES, EXIT_OK, EXIT_UNEXPECTED
from harness.report.model.marks import Mark
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import duration, moment
from harness.report.pages.changes_page import change_summary, changes_page
from harness.report.pages.convergence_page import convergence_page
from harness.report.pages.numerics_page import numerics_page
from harness.report.pages.page_templates import PageWriter, anchor_of, environment, resource
from harness.report.pages.patches_page import patches_page

STATIC_ROWS = 300
FIRST_ROWS = 60
ATTENTION_ROWS = 8
QUERIES = {
    Mark.FAIL: "unexpected-fail",
    Mark.KNOWN_FAIL: "known",
    Mark.UNEXPECTED_PASS: "unexpected-pass",
}
EXIT_WORDS = {0: "as expected", 1: "unexpected", 2: "bad input", 3: "nothing selected", 130: "interrupted"}
ASSETS = ("report.css", "query.js", "help.js", "report.js", "runs.js")


def render_overviews(model: ReportModel, folder: Path) -> list[Path]:
    """Write all pages except those of cells, with their styles and scripts, into `folder`.

    `publish.cell_rows` writes the pages of cells. OSError if a file cannot be written.
    """
    writer = PageWriter(folder)
    for name in ASSETS:
        writer.write(f"assets/{name}", resource("assets", name))
    writer.write("index.html", _index(model, writer))
    writer.write("changes.html", changes_page(model, writer))
    writer.write("patches.html", patches_page(model, writer))
    writer.write("numerics.html", numerics_page(model, writer))
    writer.write("convergence.html", convergence_page(model, writer))
    return writer.written


def _index(model: ReportModel, writer: PageWriter) -> str:
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
            turns=change_summary(model),
        )
    )


def _state(model: ReportModel) -> dict[str, str]:
    code = model.inputs.run.exit_code
    if code is not None:
        kind = {EXIT_OK: "ok", EXIT_UNEXPECTED: "bad", EXIT_BAD_INPUT: "bad"}.get(code, "open")
        meaning = f"Exit code {code}: {EXIT_CODES.get(code, 'unknown')}."
        kind = "open" if kind == "ok" and not _all_have_verdicts(model) else kind
        return {"kind": kind, "word": EXIT_WORDS.get(code, "incomplete"), "meaning": meaning}
    unexpected = model.counts.get(Mark.FAIL, 0) + model.counts.get(Mark.UNEXPECTED_PASS, 0)
    if unexpected:
        return {"kind": "bad", "word": EXIT_WORDS[EXIT_UNEXPECTED], "meaning": ""}
    if model.complete and model.planned:
        kind = "ok" if _all_have_verdicts(model) else "open"
        return {"kind": kind, "word": EXIT_WORDS[EXIT_OK], "meaning": ""}
    return {"kind": "open", "word": "incomplete", "meaning": ""}


def _all_have_verdicts(model: ReportModel) -> bool:
    """Whether every check of the whole profile has a verdict; green is only for such runs."""
    return not model.unanswered and not model.inputs.run.selection


def _run_facts(model: ReportModel) -> list[tuple[str, str]]:
    run = model.inputs.run
    facts = [
        ("profile", run.profile),
        ("selection", run.selection),
        ("commit", run.revision[:12] + ("+" if run.revision.endswith("+") else "")),
        ("cells", f"{len(model.rows):,}"),
        ("planned", f"{model.planned:,} checks"),
        ("executed", f"{run.executed:,} tasks"),
        ("reused", f"{run.reused:,} tasks"),
        ("started", moment(run.started) if run.started else ""),
        ("took", duration(run.seconds) if run.seconds else ""),
        ("command", run.command),
    ]
    return [(name, value) for name, value in facts if value]
