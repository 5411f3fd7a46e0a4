"""Estimates the time and disk space of a plan, and says what each figure is based on."""

from __future__ import annotations

from typing import Any

from harness.ledger.plan_record import CellFacts
from harness.plan.cost.disk import ENVIRONMENT_CHECK, estimate_environment_disk
from harness.plan.cost.task_cost import duration, forecast
from harness.plan.tasks.task import Plan, Task
from harness.workspace.planning.plan_history import PlanHistory


def estimate_plan(plan: Plan, known: PlanHistory) -> dict[str, Any]:
    """Estimates as JSON: for every task that still has to run, for every cell, and in total.

    Seconds are those of one task after the other. A task that cells share counts in each of them and once in
    all. disk_mib is of environments that are still to be built; disk_unknown counts those whose like was
    never measured.
    """
    cells = {cell.id: cell for cell in plan.cells}
    asking = {entry.key: cells[entry.cell_id] for entry in plan.entries}
    tasks = {
        key: _task(known, task, asking[key]) for key, task in plan.tasks.items() if key not in known.outcomes
    }
    wanted: dict[str, list[str]] = {cell: [] for cell in cells}
    for entry in plan.entries:
        if entry.key in tasks:
            wanted[entry.cell_id].append(entry.key)
    return {
        "tasks": tasks,
        "cells": {cell: _sum([tasks[key] for key in dict.fromkeys(keys)]) for cell, keys in wanted.items()},
        "total": _sum(list(tasks.values())),
    }


def _task(known: PlanHistory, task: Task, cell: CellFacts) -> dict[str, Any]:
    """`cell` is any cell that needs the task; all of them have the same environment."""
    estimate = known.costs.of_task(task)
    found = {
        "seconds": round(estimate.seconds, 1),
        "low": round(estimate.low, 1),
        "high": round(estimate.high, 1),
        "measured": estimate.samples,
        "basis": estimate.basis,
        "disk_mib": 0,
    }
    if task.check.name == ENVIRONMENT_CHECK:
        disk = estimate_environment_disk(cell.axes, cell.device)
        found |= {
            "disk_mib": disk.mib if disk else None,
            "disk_basis": disk.basis if disk else "never measured on NPUs",
        }
    return found


def _sum(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    disks = [task["disk_mib"] for task in tasks]
    return {
        "tasks": len(tasks),
        "guessed": sum(not task["measured"] for task in tasks),
        "seconds": round(sum(task["seconds"] for task in tasks), 1),
        "disk_mib": sum(disk for disk in disks if disk),
        "disk_unknown": disks.count(None),
    }


def cost_text(cost: dict[str, Any]) -> str:
    """`about 3.4 min, 4.1 GiB of disk` for a cell or a plan; "" if nothing has to run."""
    if not cost["tasks"]:
        return ""
    parts = [f"about {duration(cost['seconds'])}"]
    parts += [f"{cost['disk_mib'] / 1024:.1f} GiB of disk"] if cost["disk_mib"] else []
    unknown = cost["disk_unknown"]
    parts += [f"{unknown} environment{'s' * (unknown > 1)} of unknown size"] if unknown else []
    return ", ".join(parts)


def estimate_basis(report: dict[str, Any]) -> list[str]:
    """Lines of text with the total estimate and what it is based on."""
    total, tasks = report["total"], report["tasks"].values()
    if not total["tasks"]:
        return []
    time = (
        f"estimates: {cost_text(total)} in total, one task after the other; "
        f"{total['tasks'] - total['guessed']} of {total['tasks']} tasks by executions in this ledger, "
        f"{total['guessed']} by a documented figure"
    )
    found = sorted({task["disk_basis"] for task in tasks if "disk_basis" in task})
    disk = (
        "disk: environments that are not built yet, each as if none of its packages were in the installer's "
        f"cache ({'; '.join(found)})"
    )
    return [time, disk] if found else [time]


def work_text(known: PlanHistory, tasks: list[Task]) -> str:
    """The expected time of the tasks, with its error, as text."""
    return f"about {forecast([known.costs.of_task(task) for task in tasks])}"
