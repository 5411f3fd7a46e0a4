"""Estimates the time and disk space of a plan, and says what each figure is based on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.ledger.plan_record import CellFacts
from harness.plan.cost.disk import ENVIRONMENT_CHECK, estimate_environment_disk
from harness.plan.cost.task_cost import duration, forecast
from harness.plan.tasks.task import Plan, Task
from harness.workspace.planning.plan_history import PlanHistory


@dataclass(frozen=True, kw_only=True)
class TaskEstimate:
    """The expected seconds of a task with their range, and the disk space of the environment that it builds.

    measured: the number of executions that the seconds are based on. disk_mib: 0 for a task that builds no
    environment, None for an environment whose size is not known.
    """

    seconds: float
    low: float
    high: float
    measured: int
    basis: str
    disk_mib: int | None = 0
    disk_basis: str = ""


@dataclass(frozen=True, kw_only=True)
class TotalEstimate:
    """The sum for several tasks, executed one after the other.

    guessed: the number of tasks without a measured execution. disk_unknown: the number of environments of
    unknown size.
    """

    tasks: int
    guessed: int
    seconds: float
    disk_mib: int
    disk_unknown: int

    def __str__(self) -> str:
        """`about 3.4 min, 4.1 GiB of disk`; "" if nothing has to run."""
        if not self.tasks:
            return ""
        parts = [f"about {duration(self.seconds)}"]
        if self.disk_mib:
            parts.append(f"{self.disk_mib / 1024:.1f} GiB of disk")
        if self.disk_unknown:
            plural = "s" if self.disk_unknown > 1 else ""
            parts.append(f"{self.disk_unknown} environment{plural} of unknown size")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class PlanEstimates:
    """Estimates of the tasks that still have to run, by key, for every cell, and in total.

    A task that several cells share is included in the sum of each of them, and once in the total.
    """

    tasks: Mapping[str, TaskEstimate]
    cells: Mapping[str, TotalEstimate]
    total: TotalEstimate

    def basis_lines(self) -> list[str]:
        """Lines of text with the total and what it is based on."""
        if not self.total.tasks:
            return []
        guessed = self.total.guessed
        time = (
            f"estimates: {self.total} in total, one task after the other; "
            f"{self.total.tasks - guessed} of {self.total.tasks} tasks by executions in this ledger, "
            f"{guessed} by a documented figure"
        )
        found = sorted({task.disk_basis for task in self.tasks.values() if task.disk_basis})
        disk = (
            "disk: environments that are not built yet, each as if none of its packages were in the "
            f"installer's cache ({'; '.join(found)})"
        )
        return [time, disk] if found else [time]


def estimate_plan(plan: Plan, known: PlanHistory) -> PlanEstimates:
    """The estimates of all tasks without a reusable outcome."""
    cells = {cell.id: cell for cell in plan.cells}
    cell_of_key = {entry.key: cells[entry.cell_id] for entry in plan.entries}
    tasks = {
        key: _estimate_task(known, task, cell_of_key[key])
        for key, task in plan.tasks.items()
        if key not in known.outcomes
    }
    keys_of_cell: dict[str, set[str]] = {cell: set() for cell in cells}
    for entry in plan.entries:
        if entry.key in tasks:
            keys_of_cell[entry.cell_id].add(entry.key)
    return PlanEstimates(
        tasks=tasks,
        cells={cell: total_estimate([tasks[key] for key in keys]) for cell, keys in keys_of_cell.items()},
        total=total_estimate(tasks.values()),
    )


def _estimate_task(known: PlanHistory, task: Task, cell: CellFacts) -> TaskEstimate:
    """cell: any cell that has the task; all of them have the same environment."""
    builds = task.check.name == ENVIRONMENT_CHECK
    disk = estimate_environment_disk(cell.axes, cell.device) if builds else None
    estimate = known.costs.of_task(task)
    return TaskEstimate(
        seconds=round(estimate.seconds, 1),
        low=round(estimate.low, 1),
        high=round(estimate.high, 1),
        measured=estimate.samples,
        basis=estimate.basis,
        disk_mib=disk.mib if disk else None if builds else 0,
        disk_basis=disk.basis if disk else "never measured on NPUs" if builds else "",
    )


def total_estimate(tasks: Collection[TaskEstimate]) -> TotalEstimate:
    """The sum of estimates."""
    return TotalEstimate(
        tasks=len(tasks),
        guessed=sum(not task.measured for task in tasks),
        seconds=round(sum(task.seconds for task in tasks), 1),
        disk_mib=sum(task.disk_mib or 0 for task in tasks),
        disk_unknown=sum(task.disk_mib is None for task in tasks),
    )


def work_text(known: PlanHistory, tasks: list[Task]) -> str:
    """The expected time of the tasks, with its error, as text."""
    return f"about {forecast([known.costs.of_task(task) for task in tasks])}"
