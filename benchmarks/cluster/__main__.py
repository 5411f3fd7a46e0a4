"""How long a plan takes on a cluster, against the least it can take.

A real Ray cluster on this machine whose nodes stand for 16 hosts: cards are made up, and a task takes all
eight of a host and sleeps for a known time, so that all hosts can work although they share two processors.
Ray's own programs are too much for these with 16 nodes, so a node here stands for several hosts (`--nodes`).

The lower bound is the longer of the longest task and all work divided by the hosts: no order and no cluster
can be faster. Time goes from handing the plan over to its last outcome in the ledger: sending tasks, starting
their programs, writing outcomes and the unevenness at the end are in it. Ray's workers are started by a short
plan before that, which on a cluster that is in use they are.

    python -m benchmarks.cluster [--tasks 200] [--hosts 16] [--nodes 2] [--mean 10]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.naps import CARDS, made_up_host, naps, no_cells
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.ledger.store import Ledger
from harness.outcome import Status
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

ROOT = Path(__file__).parents[2]
GOAL = 1.1
OBJECTS_BYTES = 100 << 20


def start(hosts: int, nodes: int, folder: str) -> Any:
    """A head that works on nothing, and nodes with the cards of all hosts."""
    os.environ["PYTHONPATH"] = str(ROOT)
    # Ray reads this name as it is written.
    os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray looks for pyACL as soon as a node has NPUs, and says that there is none.
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)
    from ray.cluster_utils import Cluster

    # By default each of them would take a third of this machine's memory for objects.
    common = {"object_store_memory": OBJECTS_BYTES}
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder, **common}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    each = hosts // nodes
    for _ in range(nodes):
        cards = {"NPU": CARDS * each, "soc:a2": 1, "cann:8.5.0": 1}
        cluster.add_node(num_cpus=each, resources=cards, **common)
    return cluster


def wait_for_each(spans: Sequence[tuple[float, float]], began: float, hosts: int) -> float:
    """Seconds for which a host stands still before a task, as long as there are tasks to be had."""
    last = max(started for started, _ in spans)
    busy = sum(min(finished, last) - started for started, finished in spans)
    return (hosts * (last - began) - busy) / len(spans)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--mean", type=float, default=10.0, help="mean length of a task in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=2, help="nodes of Ray, among which hosts are divided")
    options = parser.parse_args()
    if options.hosts % options.nodes:
        parser.error("--hosts must be a multiple of --nodes")
    plan = naps(options.tasks, options.mean, options.seed)
    lengths = [float(task.facets["seconds"]) for task in plan.tasks.values()]
    bound = max(*lengths, sum(lengths) / options.hosts)
    with temporary_folder(Path("/tmp")) as folder:
        began = time.monotonic()
        cluster = start(options.hosts, options.nodes, str(folder / "ray"))
        try:
            up, load = time.monotonic() - began, os.getloadavg()[0]
            with Ledger.open(folder / "ledger") as ledger:
                remote = RemoteSite(
                    cell=no_cells, host=made_up_host, cache=str(folder / "cache"), state=str(folder / "state")
                )
                executor = RayExecutor(ledger.artifacts, ROOT, remote, cluster.address)
                try:
                    run_plan(naps(2 * options.hosts, 0.1, 0, "warm-up"), ledger, executor, judge_outcome)
                    began, began_at = time.monotonic(), time.time()
                    result = run_plan(plan, ledger, executor, judge_outcome)
                    seconds = time.monotonic() - began
                finally:
                    executor.close()
        finally:
            cluster.shutdown()
    passed = sum(one.judgement.status is Status.PASS for one in result.tasks.values())
    outcomes = result.outcomes.values()
    spans = [(outcome.started, outcome.finished) for outcome in outcomes]
    ran = [finished - started for started, finished in spans]
    failures = Counter(outcome.failure.message for outcome in outcomes if outcome.failure)
    report = {
        "tasks": options.tasks,
        "hosts": options.hosts,
        "nodes": options.nodes,
        "passed": passed,
        "retried": result.retried,
        "failures": dict(failures.most_common(3)),
        "work_seconds": round(sum(lengths), 1),
        "longest_seconds": max(lengths),
        "lower_bound_seconds": round(bound, 1),
        "seconds": round(seconds, 1),
        "ratio": round(seconds / bound, 3),
        "goal": GOAL,
        "seconds_in_tasks_beside_their_sleep": round(sum(ran) - sum(lengths), 1),
        "seconds_a_host_waits_for_a_task": round(wait_for_each(spans, began_at, options.hosts), 3),
        "seconds_until_the_last_task_starts": round(max(start for start, _ in spans) - began_at, 1),
        "seconds_to_start_the_cluster": round(up, 1),
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(report, indent=1))
    return 0 if passed == options.tasks and seconds <= GOAL * bound else 1


if __name__ == "__main__":
    raise SystemExit(main())
