"""A run to be disturbed: three tasks whose programs run in containers, one after the other, into a ledger.

    python -m benchmarks.chaos_driver DOCKER_HOST IMAGE FOLDER [hang]

FOLDER/state has the ledger. Each task that is recorded is told as one line `recorded KEY STATE`, and the
run's end as `end CODE`. With `hang` the second task's container does nothing until its time is up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.builds.engines.container_command import contained_command
from harness.cell_program.built_environment import CellContainer
from harness.check import Check, TaskContext
from harness.digest import digest_json
from harness.errors import HarnessError
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.job import JobSite
from harness.run.jobs.task_context import external_kill_error
from harness.run.scheduling.events import RunEvent, TaskFinished
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

TASKS = 3
LIMIT_SECONDS = 60.0
HANG_SECONDS = 3.0


def work(context: TaskContext) -> Measured:
    """One command in a container, which leaves an artifact."""
    facets = context.facets
    (context.workdir / "bytecode").mkdir()
    container = CellContainer(
        engine="docker",
        image=facets["image"],
        cell="chaos",
        bytecode=str(context.workdir / "bytecode"),
    )
    command, variables = contained_command(
        container,
        ("bash", "-c", facets["script"]),
        {},
        needed=(),
        has_npu=False,
        environ={"DOCKER_HOST": facets["address"]},
    )
    done = context.command(command, env=variables)
    if done.returncode == -signal.SIGKILL:
        raise external_kill_error(done.tail)
    made = context.workdir / "made.txt"
    return Measured(
        measurements={"ok": done.returncode == 0 and made.is_file()},
        evidence=Evidence.CPU,
        artifacts={"made.txt": "made.txt"} if made.is_file() else {},
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Passes when the file came out."""
    return Judgement(status=Status.PASS if measurements["ok"] else Status.FAIL)


def plan_of(address: str, image: str, number: str, *, hang: bool) -> Plan:
    """The tasks of chaos run `number`; no two runs share one."""
    tasks = []
    for place in range(TASKS):
        hangs = hang and place == 1
        script = "sleep 600" if hangs else f"sleep 0.3; echo {number}.{place} > made.txt"
        check = Check(
            name=f"work-{place}",
            run=work,
            judge=judge,
            tier=Tier.NUMERICS,
            question="?",
            facets=(),
            timeout_s=HANG_SECONDS if hangs else LIMIT_SECONDS,
        )
        facets = {"image": image, "address": address, "number": number, "script": script}
        tasks.append(
            Task(
                key=digest_json([check.name, facets]),
                check=check,
                facets=facets,
                facet_digests={name: digest_json(value) for name, value in facets.items()},
                code_digest="benchmark",
                needs=(),
                expected_s=1.0,
            )
        )
    entries = tuple(
        PlanEntry(
            cell_id=f"c{place}", check=task.check.name, tier=task.check.tier, question="?", key=task.key
        )
        for place, task in enumerate(tasks)
    )
    return Plan(
        profile="chaos",
        matrix_digest="chaos",
        cells=(),
        entries=entries,
        tasks={task.key: task for task in tasks},
    )


def tell(event: RunEvent) -> None:
    if isinstance(event, TaskFinished) and not event.retried:
        print("recorded", event.key, event.outcome.state.value, flush=True)


def main() -> int:
    address, image, folder, *more = sys.argv[1:]
    place = Path(folder)
    plan = plan_of(address, image, place.name, hang="hang" in more)
    site = JobSite(root=place, state=place / "state", cache=place / "cache", environ=dict(os.environ))
    try:
        with Ledger.open(site.state) as ledger:
            result = run_plan(plan, ledger, LocalExecutor(site, 1), judge_outcome, observer=tell)
            ledger.finish_run(result.run_id, 0)
    except HarnessError as error:
        print(str(error).replace("\n", " "), flush=True)
        print("end 4", flush=True)
        return 4
    print("end 0", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
