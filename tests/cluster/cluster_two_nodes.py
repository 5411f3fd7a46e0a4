"""Runs a cell of two nodes on a cluster and prints which addresses it was given, as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from cluster_checks import chain, made_up_host, no_cells, plan_of
from conftest import unpack_on_each_node

from harness.errors import InfrastructureError
from harness.ledger.store import Ledger
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

NODES = 3
SECONDS_TO_COME_UP = 300.0


def connected(ledger: Ledger, state: Path, address: str) -> RayExecutor:
    """The executor once all nodes are there."""
    remote = RemoteSite(cell=no_cells, host=made_up_host, cache=str(state / "cache"), state=str(state))
    deadline = time.monotonic() + SECONDS_TO_COME_UP
    while True:
        try:
            executor = RayExecutor(ledger.artifacts, Path(__file__).parents[2], remote, address)
        except InfrastructureError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
            continue
        while len(executor.nodes) < NODES and time.monotonic() < deadline:
            time.sleep(1)
        return executor


if __name__ == "__main__":
    address, state = sys.argv[1], Path(sys.argv[2])
    device = {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}
    plan = plan_of(chain("c", {"device": device, "recipe": {"nodes": 2, "cards": 8}, "pins": 1}))
    unpack_on_each_node(address, state / "staged")
    with Ledger.open(state) as ledger:
        executor = connected(ledger, state, address)
        result = run_plan(plan, ledger, executor, judge_outcome)
        executor.close()
    said = next((one.outcome for one in result.tasks.values() if one.outcome.check == "use"), None)
    reasons = [one.reason for one in result.without_outcome]
    nodes = said.measurements["said"].partition("nodes=")[2].partition(" ")[0].split(",") if said else []
    print(
        json.dumps(
            {
                "statuses": [one.judgement.status.value for one in result.tasks.values()],
                "nodes": nodes,
                "without": reasons
                + [str(one.outcome.failure) for one in result.tasks.values() if one.outcome.failure],
            }
        )
    )
