"""Executed tasks for each distinct key: cells that share a task run it once, and a second run executes
nothing.

Four checks for each of 300 cells; what the checks read repeats among cells, so that most entries share their
task. The scheduler and the executor are the real ones. The rival executes every entry of the plan.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from harness.check import Check, TaskContext
from harness.digest import digest_json
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.job import JobSite
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

CELLS = 300
#: Check -> after how many cells what it reads repeats.
PERIODS = {"shared-by-all": 1, "by-version": 7, "by-stack": 40, "by-cell": 10**9}


def measure(_context: TaskContext) -> Measured:
    return Measured(measurements={"ok": True}, evidence=Evidence.STATIC)


def judge(_measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    return Judgement(status=Status.PASS)


def plan_of(cells: int) -> Plan:
    entries: list[PlanEntry] = []
    tasks: dict[str, Task] = {}
    for name, period in PERIODS.items():
        check = Check(name=name, tier=Tier.STATIC, question="?", facets=(), run=measure, judge=judge)
        for number in range(cells):
            key = digest_json([name, number % period])
            tasks.setdefault(key, Task(key=key, check=check, facets={}, facet_digests={}, code_digest="c"))
            entries.append(
                PlanEntry(cell_id=f"cell-{number}", check=name, tier=check.tier, question="?", key=key)
            )
    return Plan(profile="default", matrix_digest="m", cells=(), entries=tuple(entries), tasks=tasks)


def figures() -> Iterator[Figure]:
    plan = plan_of(CELLS)
    with tempfile.TemporaryDirectory() as name, Ledger.open(Path(name) / "state") as ledger:
        folder = Path(name)
        site = JobSite(root=folder, state=folder / "state", cache=folder / "cache", environ=dict(os.environ))
        executed = []
        for _run in range(2):
            executor = LocalExecutor(site, 2)
            result = run_plan(plan, ledger, executor, judge_outcome)
            executor.close()
            ledger.finish_run(result.run_id, 0)
            executed.append(result.executed)
    yield Figure(
        claim=f"tasks executed for each of {len(plan.tasks)} distinct keys",
        measured=executed[0] / len(plan.tasks),
        limit=1,
        rival=len(plan.entries) / len(plan.tasks),
        rival_name="every cell for itself",
    )
    yield Figure(claim="tasks executed by a second run", measured=executed[1], limit=0)
