"""The data of the grid for the script of the page, in a compact form for ten thousand cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.model.marks import EVIDENCE, STYLES, Mark
from harness.report.model.report_model import SHOWN_AXES, ReportModel, ReportRow
from harness.report.model.short_versions import short_versions
from harness.report.model.visible_text import clip, file_name, visible
from harness.report.query.grid_query import WORDS

REASON = 160
MAX_REASONS = 4000
ABSENT = "--"
#: The axes that are columns at first, in this order; of other matrices the most varied ones.
COLUMNS = ("cann", "soc", "torch_npu", "vllm_ascend", "verl", "python")
NO_EVIDENCE = "-"
CHANGES = {"": "-", "broken": "b", "fixed": "f", "lost": "l"}


def grid_axes(model: ReportModel) -> tuple[str, ...]:
    """The axes that are columns of the grid at first."""
    known = tuple(axis for axis in COLUMNS if axis in model.all_axes)
    return known + tuple(axis for axis in model.axes if axis not in known)[: max(0, SHOWN_AXES - len(known))]


def shortened(model: ReportModel) -> dict[str, str]:
    """Version -> how the grid shows it, for versions with long commits."""
    return short_versions({visible(clip(value, 60)) for value in model.versions})


class GridRow(NamedTuple):
    """A row of the grid. why: index of a check -> the first reason of its verdict.

    axes: a value, or None if the cell does not have the axis. changes: "" if there are none.
    """

    id: str
    title: str
    page: str
    kinds: tuple[str, str, str]
    axes: tuple[str | None, ...]
    verdicts: str
    changes: str
    why: Mapping[int, str]


def grid_script(model: ReportModel, rows: Iterable[GridRow]) -> str:
    """A script with the data of the grid: in a page from `file:` script tags work and `fetch` does not."""
    text = json.dumps(grid_data(model, rows), separators=(",", ":"), allow_nan=False)
    return f"window.NPU_MATRIX={text.replace('<', chr(92) + 'u003c')};\n"


def grid_data(model: ReportModel, rows: Iterable[GridRow] | None = None) -> dict[str, Any]:
    """Columnar data: repeated strings are stored once in a list, verdicts are two letters per check.

    rows: [id, title, page, stack, device, recipe, [value per axis], verdicts, changes, {check: reason}].
    The rows are by default those of the model.
    """
    axes = model.all_axes
    if rows is None:
        rows = [grid_row(row, [check.name for check in model.checks], axes) for row in model.rows]
    values = _Pool()
    reasons = _Pool(MAX_REASONS)
    checks = model.checks
    short = shortened(model)
    numbered = [_numbered(row, values, reasons) for row in rows]
    return {
        "version": 1,
        "checks": [
            [
                visible(clip(check.name, 60)),
                check.tier.value,
                "check-" + file_name(check.name),
                visible(clip(check.question, 200)),
            ]
            for check in checks
        ],
        "axes": [visible(clip(axis, 40)) for axis in axes],
        "shown": [axes.index(axis) for axis in grid_axes(model)],
        "short": {str(place): short[text] for place, text in enumerate(values.items) if text in short},
        "marks": {style.code: [mark.value, style.label, style.word] for mark, style in STYLES.items()},
        "evidence": {style.code: [kind.value, style.label, style.tag] for kind, style in EVIDENCE.items()},
        "rows": numbered,
        "values": values.items,
        "words": WORDS,
        "reasons": reasons.items,
    }


class _Pool:
    """A list of distinct texts, and the index of each."""

    def __init__(self, limit: int | None = None) -> None:
        self.items: list[str] = []
        self._numbers: dict[str, int] = {}
        self._limit = limit

    def number(self, text: str) -> int:
        """The index of a text, or -1 if the pool is full."""
        found = self._numbers.get(text)
        if found is None:
            if self._limit is not None and len(self.items) >= self._limit:
                return -1
            found = self._numbers[text] = len(self.items)
            self.items.append(text)
        return found


def grid_row(row: ReportRow, checks: Sequence[str], axes: Sequence[str]) -> GridRow:
    """The row of a cell; axes: the axes of all cells."""
    cell = row.cell
    verdicts, changes = [], []
    why: dict[int, str] = {}
    for index, name in enumerate(checks):
        result = row.results.get(name)
        if result is None:
            verdicts.append(ABSENT)
            changes.append("-")
            continue
        evidence = result.shown_evidence
        verdicts.append(STYLES[result.mark].code + (EVIDENCE[evidence].code if evidence else NO_EVIDENCE))
        changes.append(CHANGES[result.change])
        if result.mark is not Mark.PASS and result.reason:
            why[index] = visible(clip(result.reason, REASON))
    stack, device, recipe = (visible(clip(text, 120)) for text in (cell.stack, cell.device, cell.recipe))
    return GridRow(
        id=visible(clip(cell.id, 160)),
        title=visible(clip(cell.name, 300)) if cell.name != cell.id else "",
        page=row.slug if row.slug != cell.id else "",
        kinds=(stack, device, recipe),
        axes=tuple(visible(clip(cell.axes[axis], 60)) if axis in cell.axes else None for axis in axes),
        verdicts="".join(verdicts),
        changes="".join(changes) if any(change != "-" for change in changes) else "",
        why=why,
    )


def _numbered(row: GridRow, values: _Pool, reasons: _Pool) -> list[Any]:
    id_, title, page, (stack, device, recipe), axes, verdicts, changes, why = row
    number = values.number
    numbered = {}
    for index, text in why.items():
        reason = reasons.number(text)
        if reason >= 0:
            numbered[index] = reason
    return [
        id_,
        title,
        page or 0,
        number(stack),
        number(device),
        number(recipe),
        [-1 if value is None else number(value) for value in axes],
        verdicts,
        changes or 0,
        numbered or 0,
    ]
