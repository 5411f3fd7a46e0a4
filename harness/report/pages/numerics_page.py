"""The page of numerics: shares of error budgets by case, gradients by module, self-tests, trends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from harness.cell_program.self_test import SelfTestFault
from harness.numerics.actor.actor_measurements import ActorMeasured, GradientError, TensorKindSummary
from harness.numerics.loss.loss_measurements import LossCaseOutcome, LossMeasured, LossStatus
from harness.numerics.twin.twin_measurements import TwinMeasured
from harness.report.model.release_facts import objective_changes
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.trend import trends
from harness.report.pages.measurement_blocks import Chart, ChartLine
from harness.report.pages.page_templates import PageWriter, anchor_of, environment

#: Nobody compares more columns than these by eye; report.json has the others.
MAX_COLUMNS = 12
MAX_CASES = 600
MAX_TRENDS = 48
#: Limits of the colours of shares.
LOW, HALF = 0.1, 0.5


M = TypeVar("M", LossMeasured, ActorMeasured, TwinMeasured)


@dataclass(frozen=True, kw_only=True)
class Column(Generic[M]):
    """A measured result: the title of its cell, the version of verl, and the device (`where`)."""

    title: str
    href: str
    version: str
    where: str
    result: ReportResult
    measured: M


AnyColumn = Column[LossMeasured] | Column[ActorMeasured] | Column[TwinMeasured]


@dataclass(frozen=True, kw_only=True)
class BudgetShare:
    """The share of its budget that one case uses in one column; None if there is no number.

    required: whether the case counts for the verdict; cases beyond what verl promises are measured too.
    """

    share: float | None = None
    status: str = ""
    why: str = ""
    required: bool = True

    @property
    def level(self) -> str:
        """The CSS class of the colour."""
        if self.status == "fail" or (self.share is not None and self.share > 1):
            return "over" if self.required else "beyond"
        if self.share is None:
            return "none"
        return "low" if self.share < LOW else "mid" if self.share < HALF else "high"


@dataclass(frozen=True, kw_only=True)
class CaseGroup:
    """Cases of one kind: the worst share in each column, and each case.

    wrong: how many fail in some column.
    """

    name: str
    worst: tuple[BudgetShare, ...]
    cases: tuple[tuple[str, tuple[BudgetShare, ...]], ...]
    wrong: int
    dropped: int = 0


def numerics_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    measured = [
        (row, result, typed)
        for row, result in model.measured(LossMeasured, ActorMeasured, TwinMeasured)
        if (typed := result.typed) is not None
    ]
    losses, more_losses = _columns(measured, LossMeasured)
    actors, more_actors = _columns(measured, ActorMeasured)
    twins, more_twins = _columns(measured, TwinMeasured)
    self_tests: list[tuple[AnyColumn, Sequence[SelfTestFault]]] = [
        *((column, column.measured.self_test) for column in losses),
        *((column, column.measured.self_test) for column in actors),
        *((column, column.measured.self_test) for column in twins),
    ]
    return (
        environment(writer, up="")
        .get_template("numerics.html")
        .render(
            model=model,
            infinity=float("inf"),
            losses=losses,
            actors=actors,
            twins=twins,
            more=more_losses + more_actors + more_twins,
            groups=list(_groups(losses)),
            modules=list(_modules(actors)),
            kinds=_kinds(actors),
            steps=_steps(twins),
            horizons=[
                f"{column.measured.reference.horizon.horizon} of {column.measured.planned_steps} steps"
                for column in twins
            ],
            faults=_faults(self_tests),
            trends=list(_trends([*losses, *actors, *twins])),
            changes=objective_changes([column.measured for column in losses]),
        )
    )


def _columns(
    results: Sequence[tuple[ReportRow, ReportResult, object]], shape: type[M]
) -> tuple[list[Column[M]], int]:
    """One column for each task that measured a `shape`, and how many more columns there are."""
    found: dict[str, Column[M]] = {}
    for row, result, measured in results:
        if isinstance(measured, shape):
            key = result.entry.key or f"{row.slug} {result.check}"
            found.setdefault(key, _column(row, result, measured))
    columns = list(found.values())
    return columns[:MAX_COLUMNS], max(0, len(columns) - MAX_COLUMNS)


def _column(row: ReportRow, result: ReportResult, measured: M) -> Column[M]:
    return Column(
        title=row.cell.name,
        href=f"cells/{row.slug}.html#{anchor_of(result.check)}",
        version=measured.verl,
        where=measured.device.title,
        result=result,
        measured=measured,
    )


def _groups(columns: Sequence[Column[LossMeasured]]) -> Iterator[CaseGroup]:
    """The cases of all columns by kind, in the order of the measurements."""
    by_kind: dict[str, dict[str, list[BudgetShare]]] = {}
    for index, column in enumerate(columns):
        for case in column.measured.cases:
            cases = by_kind.setdefault(case.kind, {})
            shares = cases.setdefault(case.name, [BudgetShare()] * len(columns))
            shares[index] = _share(case)
    for kind, cases in by_kind.items():
        rows = [(name, tuple(shares)) for name, shares in cases.items()]
        rows.sort(key=lambda row: not any(share.level == "over" for share in row[1]))
        yield CaseGroup(
            name=kind,
            worst=tuple(_worst(shares[index] for _name, shares in rows) for index in range(len(columns))),
            cases=tuple(rows[:MAX_CASES]),
            wrong=sum(any(share.level == "over" for share in shares) for _name, shares in rows),
            dropped=max(0, len(rows) - MAX_CASES),
        )


def _share(case: LossCaseOutcome) -> BudgetShare:
    return BudgetShare(
        # A case that was not compared has no share.
        share=case.budget if case.status in {LossStatus.PASS, LossStatus.FAIL} else None,
        status=case.status.value,
        required=case.is_required,
        why="; ".join(case.reasons),
    )


def _worst(shares: Iterable[BudgetShare]) -> BudgetShare:
    order = {"over": 3, "high": 2, "mid": 1, "low": 0, "beyond": -1, "none": -2}
    return max(shares, key=lambda share: (order[share.level], share.share or 0.0), default=BudgetShare())


def _modules(
    columns: Sequence[Column[ActorMeasured]],
) -> Iterator[tuple[str, tuple[GradientError | None, ...]]]:
    """The gradient of each parameter, in the step with the largest error."""
    found: dict[str, list[GradientError | None]] = {}
    for index, column in enumerate(columns):
        for gradient in column.measured.gradients:
            row = found.setdefault(gradient.name, [None] * len(columns))
            largest = row[index]
            if largest is None or _infinite(gradient.budget) > _infinite(largest.budget):
                row[index] = gradient
    for name, row in found.items():
        yield name, tuple(row)


def _infinite(budget: float | None) -> float:
    return float("inf") if budget is None else budget


def _kinds(columns: Sequence[Column[ActorMeasured]]) -> list[tuple[str, tuple[BudgetShare, ...]]]:
    """The worst share of each kind of tensors of the actor's update."""
    names = dict.fromkeys(name for column in columns for name in column.measured.kinds)
    return [
        (name, tuple(_kind_share(column.measured.kinds.get(name)) for column in columns)) for name in names
    ]


def _kind_share(kind: TensorKindSummary | None) -> BudgetShare:
    if kind is None:
        return BudgetShare()
    return BudgetShare(
        share=kind.worst_budget,
        status="fail" if kind.diverged else "pass",
        why=f"{kind.tensors} tensors, {kind.diverged} of them wrong",
    )


def _steps(columns: Sequence[Column[TwinMeasured]]) -> list[tuple[int, tuple[BudgetShare, ...]]]:
    """For each step of the twin runs, from 1, the worst share of its tensors in each column."""
    lists = [column.measured.worst_by_step for column in columns]
    return [
        (step + 1, tuple(_step_share(worst[step]) if step < len(worst) else BudgetShare() for worst in lists))
        for step in range(max(map(len, lists), default=0))
    ]


def _step_share(share: float | None) -> BudgetShare:
    if share is None:
        return BudgetShare(status="fail", why="a number is missing or not finite")
    return BudgetShare(share=share, status="pass" if share <= 1 else "fail")


@dataclass(frozen=True, kw_only=True)
class FaultRow:
    """An injected fault, and for each column that injected it whether it was caught."""

    fault: str
    check: str
    what: str
    seen: tuple[tuple[AnyColumn, bool], ...] = ()


def _faults(self_tests: Sequence[tuple[AnyColumn, Sequence[SelfTestFault]]]) -> list[FaultRow]:
    found: dict[str, FaultRow] = {}
    for column, faults in self_tests:
        for fault in faults:
            row = found.get(fault.fault) or FaultRow(
                fault=fault.fault, check=column.result.check, what=fault.what
            )
            found[fault.fault] = replace(row, seen=(*row.seen, (column, fault.caught)))
    return list(found.values())


def _trends(columns: Sequence[AnyColumn]) -> Iterator[tuple[AnyColumn, Chart, int]]:
    for column in columns[:MAX_TRENDS]:
        yield from ((column, chart, runs) for chart, runs in trend_charts(column.result))


def trend_charts(result: ReportResult) -> Iterator[tuple[Chart, int]]:
    """A small chart for each number that is followed over runs, and how many runs measured it."""
    for line in trends(result):
        known = tuple(value for value in line.values if value == value)
        curve = ChartLine(name=line.name, values=known, role="candidate")
        yield Chart(title=line.name, series=(curve,), unit="run"), len(known)
