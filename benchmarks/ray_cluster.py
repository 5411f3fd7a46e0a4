"""A plan of 1,000 tasks on a Ray cluster of 64 hosts of three kinds, against the least time of any order.

A real Ray cluster on this machine stands for 24 hosts of A2 (8 cards, CANN installed), 24 of A3 (16 devices,
CANN in the image) and 16 without cards. It has one node of Ray for each kind, because 64 would be too much
for a small machine; therefore the 8 or 16 cards of a task may be those of several hosts. The cards are plain
files, and a task sleeps on all cards of a host. The lower bound is the longest of: the longest task, and for
each kind its work divided by its hosts. A short plan before starts Ray's workers. The rival gives each task
to the next free host in the order of the plan, without any cost of starting it.

The overhead is the processor time of the process that runs the plan, with the threads of Ray in it, and its
peak memory. A wrong address is one where nothing listens, and one from where nothing answers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster_naps import FLEET, lengths_by_kind, made_up_host, naps, no_cells
from benchmarks.figures import ROOT, CannotRunError, Figure, peak_mb
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.errors import InfrastructureError
from harness.ledger.store import Ledger
from harness.outcome import Status
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.run_result import RunResult
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

TASKS, MEAN = 1000, 20.0
HOSTS = sum(kind.hosts for kind in FLEET)
OBJECTS_BYTES = 100 << 20
# Nothing listens on port 9 of this machine; 198.51.100.0/24 is reserved for documentation: nothing answers.
WRONG_ADDRESSES = ("127.0.0.1:9", "198.51.100.1:6379")


def start(folder: str) -> Any:
    """A head that works on nothing, and a node with the cards of all hosts of each kind."""
    os.environ["PYTHONPATH"] = str(ROOT)
    # Ray reads this name as it is written.
    os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray looks for pyACL as soon as a node has NPUs, and says that there is none.
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)
    from ray.cluster_utils import Cluster

    # Ray writes the address of the cluster here, wherever its other files are, and does not make the folder.
    Path("/tmp/ray").mkdir(exist_ok=True)
    # By default each of them would take a third of this machine's memory for objects.
    common = {"object_store_memory": OBJECTS_BYTES}
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder, **common}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for kind in FLEET:
        cluster.add_node(num_cpus=kind.hosts, resources=kind.resources, **common)
    return cluster


def wait_for_each(spans: Sequence[tuple[float, float]], began: float, hosts: int) -> float:
    """Seconds for which a host stands still before a task, as long as there are tasks to be had."""
    last = max(started for started, _ in spans)
    busy = sum(min(finished, last) - started for started, finished in spans)
    return (hosts * (last - began) - busy) / len(spans)


def list_schedule(lengths: Sequence[float], hosts: int) -> float:
    """Seconds until the end when the tasks start in this order."""
    free = [0.0] * hosts
    for length in lengths:
        free.sort()
        free[0] += length
    return max(free)


def run_on_cluster(folder: Path) -> tuple[RunResult, float, float, float]:
    """The run, when it began, its wall time and this process's processor time, in seconds."""
    cluster = start(str(folder / "ray"))
    try:
        with Ledger.open(folder / "ledger") as ledger:
            remote = RemoteSite(
                cell=no_cells, host=made_up_host, cache=str(folder / "cache"), state=str(folder / "state")
            )
            executor = RayExecutor(ledger.artifacts, ROOT, remote, cluster.address)
            with contextlib.closing(executor):
                run_plan(naps(2 * HOSTS, 0.1, 0, "warm-up"), ledger, executor, judge_outcome)
                began, used = time.time(), time.process_time()
                result = run_plan(naps(TASKS, MEAN, 1), ledger, executor, judge_outcome)
                return result, began, time.time() - began, time.process_time() - used
    finally:
        cluster.shutdown()


def seconds_to_refuse(address: str) -> float:
    """Seconds after which a command that is given the address ends; infinite if it is not refused."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.ray_cluster", address]
    refused = subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode == 4
    return time.monotonic() - began if refused else float("inf")


def figures() -> Iterator[Figure]:
    if importlib.util.find_spec("ray") is None:
        raise CannotRunError("Ray is not installed", "pip install 'npu-matrix[ray]'")
    for address in WRONG_ADDRESSES:
        yield Figure(
            claim=f"until {address} is told to be no cluster",
            measured=seconds_to_refuse(address),
            unit="s",
            limit=10,
        )
    work = lengths_by_kind(naps(TASKS, MEAN, 1))
    bound = max(max(*lengths, sum(lengths) / kind.hosts) for kind, lengths in work)
    with temporary_folder(Path("/tmp")) as folder:
        result, began, seconds, used = run_on_cluster(folder)
    passed = sum(one.judgement.status is Status.PASS for one in result.tasks.values())
    yield Figure(claim=f"of {TASKS} tasks on a cluster, not passed", measured=TASKS - passed, limit=0)
    yield Figure(
        claim=f"{TASKS} tasks on {HOSTS} hosts of three kinds against the lower bound of {bound:.0f} s",
        measured=seconds / bound,
        unit="x",
        limit=1.1,
        rival=max(list_schedule(lengths, kind.hosts) for kind, lengths in work) / bound,
        rival_name="in the order of the plan, starting for free",
    )
    spans = [(outcome.started, outcome.finished) for outcome in result.outcomes.values()]
    waiting = wait_for_each(spans, began, HOSTS)
    yield Figure(claim="a host is idle before each task", measured=waiting, unit="s", limit=0.5)
    yield Figure(
        claim="processor time of the driver for each task", measured=used / TASKS * 1000, unit="ms", limit=5
    )
    yield Figure(claim="peak memory of the driver", measured=peak_mb(), unit="MB", limit=300)


def connect(address: str) -> int:
    """Connect to a cluster as `run --executor ray` does; the exit code of the command."""
    with temporary_folder(Path("/tmp")) as folder, Ledger.open(folder / "ledger") as ledger:
        try:
            RayExecutor(ledger.artifacts, ROOT, RemoteSite(cell=no_cells), address).close()
        except InfrastructureError as error:
            print(error)
            return 4
    return 0


if __name__ == "__main__":
    sys.exit(connect(sys.argv[1]))
