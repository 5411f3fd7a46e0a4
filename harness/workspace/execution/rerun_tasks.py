"""Runs failed tasks again with unchanged keys, to find out whether a failure is flaky."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace

from harness.errors import EXIT_INTERRUPTED, EXIT_OK
from harness.ledger.store import Ledger
from harness.plan.tasks.task import Plan
from harness.run.scheduling.scheduler import RunPolicy, run_plan
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.run_setup import local_run
from harness.workspace.planning.open_plan import PlanContext


def rerun_tasks(context: PlanContext, ledger: Ledger, keys: Collection[str]) -> bool:
    """Run these tasks of the plan again on this machine; True if the user interrupted the run.

    Every attempt is recorded in a run of its own. InfrastructureError if another run uses the checkout.
    """
    with local_run(context.settings) as (executor, stopped):
        result = run_plan(
            partial_plan(context.plan, keys),
            ledger,
            executor,
            judge_outcome,
            policy=RunPolicy(keep_going=True, rerun=frozenset(keys)),
            stopped=stopped,
            argv=sys.argv[1:],
        )
    ledger.finish_run(result.run_id, EXIT_INTERRUPTED if result.interrupted else EXIT_OK)
    return result.interrupted


def partial_plan(plan: Plan, keys: Collection[str]) -> Plan:
    """The part of the plan with these keys and their dependencies, in the order of the plan."""
    selected: set[str] = set()
    queue = list(keys)
    while queue:
        key = queue.pop()
        if key in plan.tasks and key not in selected:
            selected.add(key)
            queue += plan.tasks[key].needs
    entries = tuple(entry for entry in plan.entries if entry.key in selected and entry.skip is None)
    cells = {entry.cell_id for entry in entries}
    return replace(
        plan,
        cells=tuple(cell for cell in plan.cells if cell.id in cells),
        entries=entries,
        tasks={key: task for key, task in plan.tasks.items() if key in selected},
    )
