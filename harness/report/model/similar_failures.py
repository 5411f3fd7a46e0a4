"""The context of a failure: cells with the same reason, a common condition, the most similar passing cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.report.model.failure_patterns import FAILING, PASSING, FailurePattern
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow

MAX_ALIKE = 12
#: In a larger matrix the most similar passing cell is not searched: every failure would take a pass over it.
MAX_CELLS = 300


@dataclass(frozen=True, kw_only=True)
class AxisDifference:
    """An axis on which two cells differ; "" if a cell does not have the axis."""

    axis: str
    here: str
    there: str


@dataclass(frozen=True, kw_only=True)
class Siblings:
    """The context of one failing check of one cell.

    statement: the condition on one axis that separates failing from passing cells, or "". alike: cells that
    fail with the same first reason; others: how many more there are. nearest: the passing cell
    that differs on the fewest axes; steps: these axes.
    """

    statement: str = ""
    alike: tuple[ReportRow, ...] = ()
    others: int = 0
    nearest: ReportRow | None = None
    steps: tuple[AxisDifference, ...] = ()


class SimilarFailures:
    """Finds the context of each failure among all cells of a report."""

    def __init__(self, model: ReportModel) -> None:
        self._statements: Mapping[str, FailurePattern] = {
            pattern.check: pattern for pattern in model.patterns
        }
        self._alike: dict[tuple[str, str], list[ReportRow]] = defaultdict(list)
        self._passing: dict[str, list[ReportRow]] = defaultdict(list)
        small = len(model.rows) <= MAX_CELLS
        for row in model.rows:
            for result in row.failing:
                self._alike[result.check, result.reason].append(row)
            for check in (name for name, mark in row.marks.items() if small and mark in PASSING):
                self._passing[check].append(row)

    def siblings_of(self, row: ReportRow, result: ReportResult) -> Siblings | None:
        """The context of a failure; None when the check did not fail or no other cell is related."""
        if result.mark not in FAILING:
            return None
        check = result.check
        alike = [other for other in self._alike[check, result.reason] if other is not row]
        pattern = self._statements.get(check)
        nearest, steps = _nearest(row, self._passing[check])
        if not alike and pattern is None and nearest is None:
            return None
        return Siblings(
            statement=str(pattern) if pattern else "",
            alike=tuple(alike[:MAX_ALIKE]),
            others=max(0, len(alike) - MAX_ALIKE),
            nearest=nearest,
            steps=steps,
        )


def _nearest(
    row: ReportRow, passing: Sequence[ReportRow]
) -> tuple[ReportRow | None, tuple[AxisDifference, ...]]:
    found = [(_steps(row.cell.axes, other.cell.axes), other) for other in passing]
    if not found:
        return None, ()
    steps, other = min(found, key=lambda pair: (len(pair[0]), pair[1].cell.id))
    return other, steps


def _steps(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[AxisDifference, ...]:
    return tuple(
        AxisDifference(axis=axis, here=here.get(axis, ""), there=there.get(axis, ""))
        for axis in dict.fromkeys([*here, *there])
        if here.get(axis) != there.get(axis)
    )
