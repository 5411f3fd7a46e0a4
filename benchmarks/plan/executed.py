"""Executed tasks per distinct key: cells that share a task run it once, and a second run executes nothing.

    PYTHONPATH=. python benchmarks/plan/executed.py [--cells 300]

Each cell asks four checks; what the checks read repeats among cells, so that most entries share their task.
The real scheduler runs them on the real executor, one ledger. Figure to reach: 1.00, then 0 executed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=300)
    options = parser.parse_args()
    plan = plan_of(options.cells)
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
        stored = len(ledger.history(limit=10**6))
    ratio = executed[0] / len(plan.tasks)
    print(
        json.dumps(
            {
                "entries": len(plan.entries),
                "distinct_keys": len(plan.tasks),
                "executed": executed[0],
                "executed_per_distinct_key": round(ratio, 4),
                "executed_by_a_second_run": executed[1],
            },
            indent=1,
        )
    )
    return int(ratio != 1.0 or executed[1] != 0 or stored != len(plan.tasks))


if __name__ == "__main__":
    sys.exit(main())
