"""The grid's data for the page's script: as small as ten thousand cells need it to be."""

from __future__ import annotations

import json
from typing import Any

from harness.report.marks import EVIDENCE, RAN, STYLES, Mark
from harness.report.model import ReportModel, Row
from harness.report.query import WORDS
from harness.report.text import clip, file_name, visible

REASON = 160
MAX_REASONS = 4000
ABSENT = "--"
NO_EVIDENCE = "-"
CHANGES = {"": "-", "broken": "b", "fixed": "f", "lost": "l"}


def grid_script(model: ReportModel) -> str:
    """A script that hands the grid to the page; `fetch` does not work from `file:`, script tags do."""
    text = json.dumps(grid_data(model), separators=(",", ":"), allow_nan=False)
    return f"window.NPU_MATRIX={text.replace('<', chr(92) + 'u003c')};\n"


def grid_data(model: ReportModel) -> dict[str, Any]:
    """Columnar data: strings that repeat stand once in a list, verdicts are two letters per check.

    rows: [id, title, page, stack, device, recipe, [value per axis], verdicts, changes, {check: reason}].
    """
    axes = tuple(dict.fromkeys(axis for row in model.rows for axis in row.cell.axes))
    values = _Pool()
    reasons = _Pool(MAX_REASONS)
    checks = model.checks
    return {
        "version": 1,
        "checks": [
            [visible(clip(check.name, 60)), check.tier.value, "check-" + file_name(check.name)]
            for check in checks
        ],
        "axes": [visible(clip(axis, 40)) for axis in axes],
        "shown": [axes.index(axis) for axis in model.axes],
        "marks": {style.code: [mark.value, style.label, style.word] for mark, style in STYLES.items()},
        "evidence": {style.code: [kind.value, style.label, style.tag] for kind, style in EVIDENCE.items()},
        "rows": [_row(row, [check.name for check in checks], axes, values, reasons) for row in model.rows],
        "values": values.items,
        "words": WORDS,
        "reasons": reasons.items,
    }


class _Pool:
    """Texts by number, each once."""

    def __init__(self, limit: int | None = None) -> None:
        self.items: list[str] = []
        self._numbers: dict[str, int] = {}
        self._limit = limit

    def number(self, text: str) -> int:
        """The number of a text, -1 when the pool is full."""
        found = self._numbers.get(text)
        if found is None:
            if self._limit is not None and len(self.items) >= self._limit:
                return -1
            found = self._numbers[text] = len(self.items)
            self.items.append(text)
        return found


def _row(row: Row, checks: list[str], axes: tuple[str, ...], values: _Pool, reasons: _Pool) -> list[Any]:
    cell = row.cell
    verdicts, changes = [], []
    why: dict[int, int] = {}
    for place, name in enumerate(checks):
        result = row.results.get(name)
        if result is None:
            verdicts.append(ABSENT)
            changes.append("-")
            continue
        evidence = result.facts.evidence if result.mark in RAN else None
        verdicts.append(STYLES[result.mark].code + (EVIDENCE[evidence].code if evidence else NO_EVIDENCE))
        changes.append(CHANGES[result.change])
        if result.mark is not Mark.PASS and result.facts.reasons:
            number = reasons.number(visible(clip(result.facts.reasons[0], REASON)))
            if number >= 0:
                why[place] = number
    return [
        visible(clip(cell.id, 160)),
        visible(clip(cell.title, 160)) if cell.title != cell.id else "",
        row.slug if row.slug != cell.id else 0,
        *(values.number(visible(clip(text, 120))) for text in (cell.stack, cell.device, cell.recipe)),
        [values.number(visible(clip(cell.axes[axis], 60))) if axis in cell.axes else -1 for axis in axes],
        "".join(verdicts),
        "".join(changes) if any(change != "-" for change in changes) else 0,
        why or 0,
    ]
