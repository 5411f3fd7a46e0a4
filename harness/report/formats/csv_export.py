"""All results as CSV, one row each, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.visible_text import as_bytes, clip, iso, visible

#: What a spreadsheet takes for the beginning of a formula.
FORMULA = frozenset("=+-@\t\r")
REASON = 400
HEAD = ("cell", "title", "stack", "device", "recipe")
TAIL = (
    "check",
    "tier",
    "status",
    "verdict",
    "evidence",
    "change",
    "since_run",
    "reason",
    "remedy",
    "key",
    "run",
    "started",
    "seconds",
    "reused",
)


def results_csv(model: ReportModel, by_row: Iterable[bytes] | None = None) -> bytes:
    """A row per check of a cell, a column per axis (`axis:verl`).

    An apostrophe precedes text that a spreadsheet would execute as a formula. by_row: the lines of each
    cell if they were made before.
    """
    axes = model.all_axes
    head = _lines([_safe([*HEAD, *(f"axis:{axis}" for axis in axes), *TAIL])])
    if by_row is None:
        by_row = [row_lines(model, row) for row in model.rows]
    return head + b"".join(by_row)


def row_lines(model: ReportModel, row: ReportRow) -> bytes:
    """The lines of one cell."""
    head = _safe(_facts(row, model.all_axes))
    return _lines([[*head, *_safe(_verdict(model, result))] for result in row.results.values()])


def _lines(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return as_bytes(out.getvalue())


def _facts(row: ReportRow, axes: Sequence[str]) -> list[str]:
    cell = row.cell
    return [
        cell.id,
        cell.title,
        cell.stack,
        cell.device,
        cell.recipe,
        *(cell.axes.get(axis, "") for axis in axes),
    ]


def _verdict(model: ReportModel, result: ReportResult) -> list[str]:
    verdict, outcome, streak = result.verdict, result.verdict.outcome, model.streak(result)
    return [
        result.check,
        result.entry.tier.value,
        verdict.status.value,
        result.mark.value,
        verdict.evidence.value if verdict.evidence else "",
        result.change,
        streak.since_run if streak else "",
        result.reason,
        result.remedy,
        result.entry.key,
        outcome.run_id if outcome else "",
        iso(outcome.started) if outcome else "",
        f"{outcome.seconds:.3f}" if outcome and outcome.started else "",
        "yes" if result.reused else "no",
    ]


def _safe(texts: list[str]) -> list[str]:
    """The texts as cells. Most rows have nothing to make safe, which one look at all their texts shows."""
    whole = "".join(texts)
    if len(whole) <= REASON and whole.isprintable() and FORMULA.isdisjoint([text[:1] for text in texts]):
        return texts
    return list(map(_cell, texts))


def _cell(text: str) -> str:
    safe = visible(clip(text, REASON))
    return f"'{safe}" if safe[:1] in FORMULA else safe
