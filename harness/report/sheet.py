"""Every result as a row of CSV, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io

from harness.report.model import ReportModel, Result, Row
from harness.report.text import clip, iso, visible

FORMULA = ("=", "+", "-", "@", "\t", "\r")
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


def results_csv(model: ReportModel) -> str:
    """One row per (cell, check), a column per axis (`axis:verl`). Text a spreadsheet would run as a formula
    gets an apostrophe in front."""
    axes = tuple(dict.fromkeys(axis for row in model.rows for axis in row.cell.axes))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_cell(name) for name in (*HEAD, *(f"axis:{axis}" for axis in axes), *TAIL)])
    for row in model.rows:
        head = [_cell(value) for value in _facts(row, axes)]
        writer.writerows([*head, *map(_cell, _answer(result))] for result in row.results.values())
    return out.getvalue()


def _facts(row: Row, axes: tuple[str, ...]) -> list[str]:
    cell = row.cell
    return [
        cell.id,
        cell.title,
        cell.stack,
        cell.device,
        cell.recipe,
        *(cell.axes.get(axis, "") for axis in axes),
    ]


def _answer(result: Result) -> list[str]:
    facts = result.facts
    return [
        facts.check,
        facts.tier.value,
        facts.status.value,
        result.mark.value,
        facts.evidence.value if facts.evidence else "",
        result.change,
        result.streak.since_run if result.streak else "",
        facts.reasons[0] if facts.reasons else "",
        facts.remedies[0] if facts.remedies else "",
        facts.key,
        facts.run_id,
        iso(facts.started),
        f"{facts.seconds:.3f}" if facts.started else "",
        "yes" if facts.reused else "no",
    ]


def _cell(text: str) -> str:
    safe = visible(clip(text, REASON)) if text else ""
    return f"'{safe}" if safe.startswith(FORMULA) else safe
