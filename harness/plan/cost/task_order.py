"""The order in which tasks run, so that the most informative results come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.plan.tasks.task import Plan, Task


class TaskPriority(NamedTuple):
    """The sort key of a task, smallest first; the task's key makes it unique."""

    tier: int
    passed_before: bool
    decides: float
    path: float
    key: str


@dataclass(frozen=True, kw_only=True)
class OrderedTask:
    """A task in the order of execution.

    decides: how many more expensive entries its failure would skip, times the probability that it fails.
    path: seconds until the last task that depends on it is done, times the cards that its cell requires.
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
    """Every task of the plan in the order of execution.

    Cheap tiers come first. In a tier, tasks that failed last time come first, then those with the largest
    `decides`, then those with the longest path in card-seconds.
    seconds: key -> expected cost, `expected_s` by default. failure_rate: check -> how often it fails, by
    default 0.5. cards: cell id -> cards that its recipe requires.
    """
    spent = {key: (seconds or {}).get(key, task.expected_s) for key, task in plan.tasks.items()}
    saved = _saved(plan)
    paths = _paths(plan, spent, _width(plan, cards or {}))
    rates = failure_rate or {}
    tasks = [
        OrderedTask(
            key=key,
            check=task.check.name,
            failed_before=key in failed_before,
            decides=saved[key] * rates.get(task.check.name, 0.5),
            path=paths[key],
        )
        for key, task in plan.tasks.items()
    ]
    return tuple(sorted(tasks, key=lambda task: _rank(task, plan.tasks[task.key])))


def _rank(ordered: OrderedTask, task: Task) -> TaskPriority:
    return TaskPriority(
        tier=task.check.tier.rank,
        passed_before=not ordered.failed_before,
        decides=-ordered.decides,
        path=-ordered.path,
        key=ordered.key,
    )


def _saved(plan: Plan) -> Mapping[str, int]:
    """Key -> the number of entries in more expensive tiers of its cells, which are skipped if it fails."""
    by_cell: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for entry in plan.entries:
        if entry.key:
            by_cell[entry.cell_id].append((entry.tier.rank, entry.key))
    saved: dict[str, int] = defaultdict(int)
    for ranked in by_cell.values():
        for rank, key in ranked:
            saved[key] += sum(other > rank for other, _ in ranked)
    return saved


def _width(plan: Plan, cards: Mapping[str, int]) -> Mapping[str, int]:
    width: dict[str, int] = {}
    for entry in plan.entries:
        width[entry.key] = max(width.get(entry.key, 1), cards.get(entry.cell_id, 1))
    return width


def _paths(plan: Plan, seconds: Mapping[str, float], width: Mapping[str, int]) -> Mapping[str, float]:
    """Key -> card-seconds of the longest chain of dependent tasks that starts with it."""
    dependants: dict[str, list[str]] = defaultdict(list)
    for key, task in plan.tasks.items():
        for need in task.needs:
            dependants[need].append(key)
    paths: dict[str, float] = {}
    # In a plan, tasks come after their dependencies, so that one backward pass is enough.
    for key in reversed(tuple(plan.tasks)):
        after = max((paths.get(other, 0.0) for other in dependants[key]), default=0.0)
        paths[key] = seconds[key] * width.get(key, 1) + after
    return paths
