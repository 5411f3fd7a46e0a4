"""In which order to run tasks so that time is spent where it tells something first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.plan.tasks.task import Plan, Task


class TaskPriority(NamedTuple):
    """A task's place, smallest first; the key makes it unique."""

    tier: int
    passed_before: bool
    decides: float
    path: float
    key: str


@dataclass(frozen=True, kw_only=True)
class OrderedTask:
    """A task in its turn.

    decides: how many dearer answers its failure would save, times the chance that it fails.
    path: seconds until the last task that needs it is done, times the cards its cell asks for.
    """

    key: str
    check: str
    failed_before: bool
    decides: float
    path: float


def order_tasks(
    plan: Plan,
    *,
    seconds: Mapping[str, float] | None = None,
    failed_before: Collection[str] = (),
    failure_rate: Mapping[str, float] | None = None,
    cards: Mapping[str, int] | None = None,
) -> tuple[OrderedTask, ...]:
    """Every task of the plan: cheap tiers first; in a tier what failed last time, then what decides most,
    then the longest way to the end, counted in card-seconds.

    seconds: key -> expected cost, `expected_s` by default. failure_rate: check -> how often it fails, 0.5
    where nothing is known. cards: cell id -> cards its recipe asks for.
    """
    spent = {key: (seconds or {}).get(key, task.expected_s) for key, task in plan.tasks.items()}
    saved = _saved(plan)
    paths = _paths(plan, spent, _width(plan, cards or {}))
    rates = failure_rate or {}
    turns = [
        OrderedTask(
            key=key,
            check=task.check.name,
            failed_before=key in failed_before,
            decides=saved[key] * rates.get(task.check.name, 0.5),
            path=paths[key],
        )
        for key, task in plan.tasks.items()
    ]
    return tuple(sorted(turns, key=lambda turn: _rank(turn, plan.tasks[turn.key])))


def _rank(turn: OrderedTask, task: Task) -> TaskPriority:
    return TaskPriority(
        tier=task.check.tier.rank,
        passed_before=not turn.failed_before,
        decides=-turn.decides,
        path=-turn.path,
        key=turn.key,
    )


def _saved(plan: Plan) -> Mapping[str, int]:
    """Key -> answers of dearer tiers in the cells that ask for it, which need not be sought if it fails."""
    by_cell: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for entry in plan.entries:
        if entry.key:
            by_cell[entry.cell_id].append((entry.tier.rank, entry.key))
    saved: dict[str, int] = defaultdict(int)
    for answers in by_cell.values():
        for rank, key in answers:
            saved[key] += sum(other > rank for other, _ in answers)
    return saved


def _width(plan: Plan, cards: Mapping[str, int]) -> Mapping[str, int]:
    width: dict[str, int] = {}
    for entry in plan.entries:
        width[entry.key] = max(width.get(entry.key, 1), cards.get(entry.cell_id, 1))
    return width


def _paths(plan: Plan, seconds: Mapping[str, float], width: Mapping[str, int]) -> Mapping[str, float]:
    """Key -> card-seconds to the end of the longest chain of tasks that starts with it."""
    dependants: dict[str, list[str]] = defaultdict(list)
    for key, task in plan.tasks.items():
        for need in task.needs:
            dependants[need].append(key)
    paths: dict[str, float] = {}
    # Needs stand in cheaper or equal tiers and before their dependants, so one pass backwards suffices.
    for key in reversed(tuple(plan.tasks)):
        after = max((paths.get(other, 0.0) for other in dependants[key]), default=0.0)
        paths[key] = seconds[key] * width.get(key, 1) + after
    return paths
