"""Plans on a Ray cluster: placement, nodes that die, a driver that dies, and what is kept apart."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_checks import NAP, chain, made_up_host, no_cells, plan_of, task
from conftest import CARDS, HERE, ROOT

from harness.builds.cleanup.cleanup_candidates import judge_temporary_folders
from harness.builds.ownership.owner_labels import ProcessView
from harness.builds.ownership.temporary_folders import PREFIX
from harness.ledger.store import Ledger
from harness.outcome import State, Status
from harness.plan.tasks.task import Plan
from harness.run.executors.ray_executor import RayExecutor, RemoteSite
from harness.run.scheduling.run_result import RunResult
from harness.run.scheduling.scheduler import run_plan
from harness.verdict.verdict import judge_outcome

pytestmark = [
    pytest.mark.timeout(900),
    # Ray 2.60 leaves sockets and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]
A2 = {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}


@contextlib.contextmanager
def executor(cluster: Any, ledger: Ledger, state: Path) -> Iterator[RayExecutor]:
    remote = RemoteSite(cell=no_cells, host=made_up_host, cache=str(state / "cache"), state=str(state))
    made = RayExecutor(ledger.artifacts, ROOT, remote, cluster.address)
    try:
        yield made
    finally:
        made.close()


def run(cluster: Any, state: Path, plan: Plan, **options: Any) -> RunResult:
    with Ledger.open(state) as ledger, executor(cluster, ledger, state) as on:
        return run_plan(plan, ledger, on, judge_outcome, **options)


def of(result: RunResult, check: str) -> list[Any]:
    return [one.outcome for one in result.tasks.values() if one.outcome.check == check]


def statuses(result: RunResult) -> list[Status]:
    judged = [one.judgement.status for one in result.tasks.values()]
    return judged + [one.status for one in result.without_outcome]


def test_a_cell_stays_where_its_environment_is_and_its_files_come_back(cluster, tmp_path):
    cells = [pair for n in range(3) for pair in chain(f"c{n}", {"device": A2, "pins": n})]
    result = run(cluster, tmp_path, plan_of(cells))
    assert set(statuses(result)) == {Status.PASS}
    assert result.executed == 9
    homes = [
        (made.measurements["home"], used.measurements["home"])
        for made, used in zip(of(result, "build"), of(result, "use"), strict=True)
    ]
    assert all(made == used for made, used in homes)
    with Ledger.open(tmp_path) as ledger:
        (lock, *_) = of(result, "lock")
        assert ledger.artifacts.get(lock.artifact("lock.txt")).read_text() == "pinned 0\n"
        assert "pinned" in ledger.artifacts.get(of(result, "use")[0].log).read_text()
    again = run(cluster, tmp_path, plan_of(cells))
    assert (again.executed, again.reused) == (0, 9)


def test_what_a_cell_starts_knows_nothing_of_this_cluster(cluster, tmp_path):
    result = run(cluster, tmp_path, plan_of(chain("c", {"device": A2, "pins": 1})))
    assert of(result, "use")[0].measurements["said"] == "nodes= ray="


def test_a_cell_of_two_nodes_gets_two_and_their_addresses(cluster, tmp_path):
    facets = {"device": A2, "recipe": {"nodes": 2, "cards": 8}, "pins": 2}
    result = run(cluster, tmp_path, plan_of(chain("c", facets)))
    assert set(statuses(result)) == {Status.PASS}
    said = of(result, "use")[0].measurements["said"]
    assert len(said.partition("nodes=")[2].partition(" ")[0].split(",")) == 2


def test_what_no_node_can_give_is_an_error_that_says_so(cluster, tmp_path):
    wanted = {**A2, "soc": "Ascend910_9391", "cann": "9.0.0"}
    result = run(cluster, tmp_path, plan_of(chain("c", {"device": wanted, "pins": 3})))
    assert statuses(result) == [Status.PASS, Status.ERROR, Status.BLOCKED]
    assert "no node has cann:9.0.0, soc:a3" in of(result, "build")[0].failure.message


def test_a_node_that_dies_costs_a_retry_elsewhere_with_the_environment_made_anew(cluster, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    nodes = [
        cluster.add_node(num_cpus=1, resources={"NPU": 1, "soc:a3": 1, "cann:9.0.0": 1}) for _ in range(2)
    ]
    facets = {
        "device": {**A2, "soc": "Ascend910_9391", "cann": "9.0.0"},
        "pins": 4,
        "marks": str(marks),
    }
    plan = plan_of(chain("c", facets))
    killed: list[str] = []

    def kill() -> None:
        deadline = time.monotonic() + 600
        while not any(marks.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.1)
        (mark,) = marks.iterdir()
        (node,) = [one for one in nodes if mark.name.endswith(one.node_id[:16])]
        killed.append(node.node_id[:16])
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run(cluster, tmp_path, plan)
    killer.join()
    assert statuses(result) == [Status.PASS] * 3
    assert result.retried == 1
    # On two nodes: the one that died, and the one that had to make the folder first.
    assert len(list(marks.iterdir())) == 2
    goes = {Path(one.name).name: one.removable for one in judge_temporary_folders(ProcessView(), tmp_path)}
    assert {name for name, one in goes.items() if one} == {f"{PREFIX}node-{killed[0]}"}
    assert len(goes) > 1


def test_a_driver_that_dies_is_resumed_and_what_it_had_is_not_done_again(cluster, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    driver = subprocess.Popen(
        [sys.executable, str(HERE / "cluster_driver.py"), cluster.address, str(tmp_path), str(marks)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with Ledger.open(tmp_path) as ledger:
        while sum(outcome.state is State.COMPLETED for outcome in ledger.history(check="nap")) < 3:
            assert driver.poll() is None, "the driver ended before it could be killed"
            time.sleep(0.2)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    with Ledger.open(tmp_path) as ledger:
        kept = {outcome.key for outcome in ledger.history(check="nap") if outcome.state is State.COMPLETED}
    plan = naps(marks)
    result = run(cluster, tmp_path, plan)
    assert set(statuses(result)) == {Status.PASS}
    assert result.reused == len(kept)
    done = {entry.cell_id for entry in plan.entries if entry.key in kept}
    assert all((marks / name).read_text() == "x" for name in done)


def test_stopping_takes_back_what_waits_and_ends_what_runs(cluster, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    plan = plan_of(
        [(f"n{n}", task(NAP, {"name": f"n{n}", "seconds": 600, "marks": str(marks)})) for n in range(12)]
    )
    result = run(cluster, tmp_path, plan, stopped=lambda: any(marks.iterdir()))
    assert result.interrupted
    assert set(statuses(result)) == {Status.ERROR}
    with Ledger.open(tmp_path) as ledger:
        assert {outcome.state for outcome in ledger.history(check="nap")} == {State.INTERRUPTED}


def naps(marks: Path) -> Plan:
    return plan_of(
        [(f"n{n}", task(NAP, {"name": f"n{n}", "seconds": 1, "marks": str(marks)})) for n in range(20)]
    )


def test_the_cards_of_a_node_are_never_given_twice(cluster, tmp_path):
    # Eight tasks of eight cards on three nodes of eight: at most three at a time.
    marks = tmp_path / "marks"
    marks.mkdir()
    assert CARDS["NPU"] == 8
    cells = [
        pair
        for n in range(6)
        for pair in chain(
            f"c{n}", {"device": A2, "recipe": {"nodes": 1, "cards": 8}, "pins": 10 + n, "seconds": 1}
        )
    ]
    result = run(cluster, tmp_path, plan_of(cells))
    spans = sorted((one.started, one.finished) for one in of(result, "use"))
    most = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert set(statuses(result)) == {Status.PASS}
    assert most <= 3


def test_a_task_of_two_hosts_runs_on_both_and_a_lost_one_is_named(cluster, tmp_path):
    """The other host is told to end, so the task ends long before its time limit."""
    marks = tmp_path / "marks"
    marks.mkdir()
    nodes = [
        cluster.add_node(num_cpus=1, resources={"NPU": 1, "soc:a3": 1, "cann:9.1.0": 1}) for _ in range(2)
    ]
    device = {**A2, "soc": "Ascend910_9391", "cann": "9.1.0"}
    facets = {"device": device, "recipe": {"nodes": 2, "cards": 1}, "pins": 5, "meeting": str(marks)}

    def lose_one() -> None:
        deadline = time.monotonic() + 600
        while len(list(marks.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        cluster.remove_node(nodes[1], allow_graceful=False)

    loser = threading.Thread(target=lose_one)
    loser.start()
    started = time.monotonic()
    result = run(cluster, tmp_path, plan_of(chain("c", facets)))
    loser.join()
    cluster.remove_node(nodes[0])
    assert len({mark.name for mark in marks.iterdir()}) == 2
    (lost,) = [one.outcome for one in result.tasks.values() if one.outcome.check == "use"]
    assert lost.state is State.ERROR
    assert lost.failure
    assert "1 of " in lost.failure.message
    assert "no longer in the cluster" in lost.failure.message
    assert time.monotonic() - started < 300
