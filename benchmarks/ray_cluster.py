"""A plan of 200 tasks on a Ray cluster of 16 hosts, against the least time that any order can take.

A real Ray cluster on this machine stands for 16 hosts of 8 cards (on two nodes of Ray, because 16 would be
too much for a small machine); its cards are plain files, and a task sleeps on all cards of a host. The lower
bound is the longer of the longest task and all work divided by the hosts. A short plan before starts Ray's
workers. The rival gives each task to the next free host in the order of the plan, without any cost of
starting it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster_naps import CARDS, made_up_host, naps, no_cells
from benchmarks.figures import ROOT, CannotRunError, Figure
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.ledger.store import Ledger
from harness.outcome import Status
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

TASKS, HOSTS, NODES, MEAN = 200, 16, 2, 10.0
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


def list_schedule(lengths: Sequence[float]) -> float:
    """Seconds until the end when the tasks start in this order."""
    free = [0.0] * HOSTS
    for length in lengths:
        free.sort()
        free[0] += length
    return max(free)


def figures() -> Iterator[Figure]:
    if importlib.util.find_spec("ray") is None:
        raise CannotRunError("Ray is not installed", "pip install 'npu-matrix[ray]'")
    plan = naps(TASKS, MEAN, 1)
    lengths = [float(task.facets["seconds"]) for task in plan.tasks.values()]
    bound = max(*lengths, sum(lengths) / HOSTS)
    with temporary_folder(Path("/tmp")) as folder:
        cluster = start(HOSTS, NODES, str(folder / "ray"))
        try:
            with Ledger.open(folder / "ledger") as ledger:
                remote = RemoteSite(
                    cell=no_cells, host=made_up_host, cache=str(folder / "cache"), state=str(folder / "state")
                )
                executor = RayExecutor(ledger.artifacts, ROOT, remote, cluster.address)
                try:
                    run_plan(naps(2 * HOSTS, 0.1, 0, "warm-up"), ledger, executor, judge_outcome)
                    began = time.time()
                    result = run_plan(plan, ledger, executor, judge_outcome)
                    seconds = time.time() - began
                finally:
                    executor.close()
        finally:
            cluster.shutdown()
    passed = sum(one.judgement.status is Status.PASS for one in result.tasks.values())
    yield Figure(claim=f"of {TASKS} tasks on a cluster, not passed", measured=TASKS - passed, limit=0)
    yield Figure(
        claim=f"{TASKS} tasks on {HOSTS} hosts against the lower bound of {bound:.0f} s",
        measured=seconds / bound,
        unit="x",
        limit=1.1,
        rival=list_schedule(lengths) / bound,
        rival_name="in the order of the plan, starting for free",
    )
    spans = [(outcome.started, outcome.finished) for outcome in result.outcomes.values()]
    waiting = wait_for_each(spans, began, HOSTS)
    yield Figure(claim="a host is idle before each task", measured=waiting, unit="s", limit=0.2)
