"""The page of numerics: shares of error budgets by case, gradients by module, self-tests, trends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.model.release_facts import objective_changes
from harness.report.model.report_inputs import ResultInput
from harness.report.model.report_model import ReportModel, Result, Row
from harness.report.model.trend import as_float, trends
from harness.report.pages.measurement_blocks import Chart, Series
from harness.report.pages.page_templates import Writer, anchor_of, environment

#: More columns than this are not compared by eye; the rest stands in report.json.
MAX_COLUMNS = 12
MAX_CASES = 600
MAX_TRENDS = 48
UNNAMED = "other"
#: A check of numerics measures one of these; of many results they tell those the page is about.
NUMERIC = frozenset({"cases", "gradients", "worst_by_step"})
REQUIRED = "required"
#: How shares are coloured; the number stands in every field.
LOW, HALF = 0.1, 0.5


@dataclass(frozen=True, kw_only=True)
class Column:
    """A measured result: `title` is its cell's, `version` verl's, `where` the device it says it ran on."""

    title: str
    href: str
    version: str
    where: str
    result: Result


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one case used of its budget in one column; `share` None where there is no number.

    required: whether the verdict hangs on it; a case beyond what verl promises is measured all the same.
    """

    share: float | None = None
    status: str = ""
    why: str = ""
    required: bool = True

    @property
    def level(self) -> str:
        """A class by which shares are told apart at a glance."""
        if self.status == "fail" or (self.share is not None and self.share > 1):
            return "over" if self.required else "beyond"
        if self.share is None:
            return "none"
        return "low" if self.share < LOW else "mid" if self.share < HALF else "high"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Cases of one kind: the worst share per column, and each case; `wrong` of them fail somewhere."""

    name: str
    worst: tuple[Share, ...]
    cases: tuple[tuple[str, tuple[Share, ...]], ...]
    wrong: int
    dropped: int = 0


def numerics_page(model: ReportModel, writer: Writer) -> str:
    """The page as HTML."""
    measured = [found for found in model.measured if not NUMERIC.isdisjoint(found[1].facts.measurements)]
    losses, left = _columns(measured, "cases", "self_test")
    actors, also_left = _columns(measured, "gradients", "kinds")
    twins, twins_left = _columns(measured, "worst_by_step", "self_test")
    return (
        environment(writer, up="")
        .get_template("numerics.html")
        .render(
            model=model,
            losses=losses,
            actors=actors,
            twins=twins,
            left=left + also_left + twins_left,
            groups=list(_groups(losses)),
            modules=list(_modules(actors)),
            kinds=_kinds(actors),
            steps=_steps(twins),
            horizons=[_horizon(column) for column in twins],
            faults=[*_faults(losses), *_faults(actors), *_faults(twins)],
            trends=list(_trends([*losses, *actors, *twins])),
            changes=objective_changes([column.result.facts.measurements for column in losses]),
        )
    )


def _columns(results: Sequence[tuple[Row, Result]], *needed: str) -> tuple[list[Column], int]:
    """One column per task (cells may share one), and how many more there are."""
    found: dict[str, Column] = {}
    for row, result in results:
        measured = result.facts.measurements
        if all(name in measured for name in needed):
            found.setdefault(result.facts.key or f"{row.slug} {result.facts.check}", _column(row, result))
    columns = list(found.values())
    return columns[:MAX_COLUMNS], max(0, len(columns) - MAX_COLUMNS)


def _column(row: Row, result: Result) -> Column:
    measured = result.facts.measurements
    device = measured.get("device")
    facts = device if isinstance(device, Mapping) else {}
    kind = "simulated " if facts.get("simulated") else ""
    return Column(
        title=row.cell.title or row.cell.id,
        href=f"cells/{row.slug}.html#{anchor_of(result.facts.check)}",
        version=str(measured.get("verl") or row.cell.axes.get("verl", "")),
        where=f"{kind}{facts.get('soc') or facts.get('device') or ''}".strip(),
        result=result,
    )


def _groups(columns: Sequence[Column]) -> Iterator[Group]:
    """Cases of all columns by kind, the kinds in the order in which they were measured."""
    by_kind: dict[str, dict[str, list[Share]]] = {}
    for place, column in enumerate(columns):
        for case in _mappings(column.result.facts.measurements.get("cases")):
            cases = by_kind.setdefault(str(case.get("kind", UNNAMED)), {})
            shares = cases.setdefault(str(case.get("name", "")), [Share()] * len(columns))
            shares[place] = _share(case)
    for kind, cases in by_kind.items():
        rows = [(name, tuple(shares)) for name, shares in cases.items()]
        rows.sort(key=lambda row: not any(share.level == "over" for share in row[1]))
        yield Group(
            name=kind,
            worst=tuple(_worst(shares[place] for _name, shares in rows) for place in range(len(columns))),
            cases=tuple(rows[:MAX_CASES]),
            wrong=sum(any(share.level == "over" for share in shares) for _name, shares in rows),
            dropped=max(0, len(rows) - MAX_CASES),
        )


def _share(case: Mapping[str, Any]) -> Share:
    reasons = case.get("reasons")
    status = str(case.get("status", ""))
    return Share(
        # Where nothing was compared there is no share, whatever number stands there.
        share=as_float(case.get("budget")) if status in {"pass", "fail"} else None,
        status=status,
        required=case.get("severity", REQUIRED) == REQUIRED,
        why="; ".join(map(str, reasons)) if isinstance(reasons, list | tuple) else "",
    )


def _worst(shares: Iterable[Share]) -> Share:
    order = {"over": 3, "high": 2, "mid": 1, "low": 0, "beyond": -1, "none": -2}
    return max(shares, key=lambda share: (order[share.level], share.share or 0.0), default=Share())


def _modules(columns: Sequence[Column]) -> Iterator[tuple[str, tuple[dict[str, Any] | None, ...]]]:
    """Each parameter's gradient: of all steps the one that is farthest off."""
    found: dict[str, list[dict[str, Any] | None]] = {}
    for place, column in enumerate(columns):
        for entry in _mappings(column.result.facts.measurements.get("gradients")):
            row = found.setdefault(str(entry.get("name", "")), [None] * len(columns))
            budget = as_float(entry.get("budget"))
            new = {
                "error": as_float(entry.get("relative_error")),
                "tolerance": as_float(entry.get("tolerance")),
                "budget": float("inf") if budget is None else budget,
            }
            old = row[place]
            if old is None or new["budget"] > old["budget"]:
                row[place] = new
    for name, row in found.items():
        yield name, tuple(row)


def _kinds(columns: Sequence[Column]) -> list[tuple[str, tuple[Share, ...]]]:
    """Kinds of tensors of the actor's update: the worst share of each."""
    measured = [column.result.facts.measurements.get("kinds") for column in columns]
    kinds = [kind if isinstance(kind, Mapping) else {} for kind in measured]
    names = dict.fromkeys(str(name) for kind in kinds for name in kind)
    return [
        (
            name,
            tuple(
                Share(
                    share=as_float(entry.get("worst_budget")),
                    status="fail" if entry.get("diverged") else "pass",
                    why=f"{entry.get('tensors', '?')} tensors, {entry.get('diverged', '?')} of them wrong",
                )
                if isinstance(entry := kind.get(name), Mapping)
                else Share()
                for kind in kinds
            ),
        )
        for name in names
    ]


def _steps(columns: Sequence[Column]) -> list[tuple[int, tuple[Share, ...]]]:
    """Each step of the twin runs, from 1: the worst share of its tensors in each column."""
    worst = [column.result.facts.measurements.get("worst_by_step") for column in columns]
    lists = [values if isinstance(values, list | tuple) else [] for values in worst]
    return [
        (step + 1, tuple(_step_share(values[step]) if step < len(values) else Share() for values in lists))
        for step in range(max(map(len, lists), default=0))
    ]


def _step_share(value: object) -> Share:
    share = as_float(value)
    if share is None:
        return Share(status="fail", why="a number is missing or not finite")
    return Share(share=share, status="pass" if share <= 1 else "fail")


def _horizon(column: Column) -> str:
    """How many steps can be told apart from arithmetic, of those that were wanted."""
    measured = column.result.facts.measurements
    return f"{measured.get('horizon', '?')} of {measured.get('wanted', '?')} steps"


def _faults(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Each seeded fault, and in which columns it was caught; None where it was not seeded."""
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        for entry in _mappings(column.result.facts.measurements.get("self_test")):
            name = str(entry.get("fault", ""))
            row = found.setdefault(
                name,
                {
                    "fault": name,
                    "check": column.result.facts.check,
                    "what": str(entry.get("what", "")),
                    "seen": [],
                },
            )
            row["seen"].append((column, bool(entry.get("caught"))))
    return list(found.values())


def _trends(columns: Sequence[Column]) -> Iterator[tuple[Column, Chart, int]]:
    for column in columns[:MAX_TRENDS]:
        yield from ((column, chart, runs) for chart, runs in trend_charts(column.result.facts))


def trend_charts(result: ResultInput) -> Iterator[tuple[Chart, int]]:
    """A small chart for each number that is followed, with how many runs it was measured in."""
    for line in trends(result):
        known = tuple(value for value in line.values if value == value)
        curve = Series(name=line.name, values=known, role="candidate")
        yield Chart(title=line.name, series=(curve,), unit="run"), len(known)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; a stored outcome may be older than this code."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
