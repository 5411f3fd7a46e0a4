"""Tasks on real cards lease them: their programs see only these cards, and waiting is not part of their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_fakes import LeapingClock, make_check, make_task

from harness.check import TaskContext
from harness.devices.cards.card_leases import CardLeases
from harness.outcome import Evidence, Measured, Outcome, State, Tier
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.job import Job, JobSite

NPU = {"device": {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}}


def show(context) -> Measured:
    done = context.command(["sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES"])
    return Measured(measurements={"ok": True, "cards": done.tail.strip()}, evidence=Evidence.CPU)


@pytest.fixture
def site(tmp_path: Path) -> JobSite:
    environ = {"PATH": "/usr/bin:/bin", "NPU_MATRIX_LEASES": str(tmp_path / "leases")}
    dev = tmp_path / "dev"
    dev.mkdir()
    for card in (0, 1):
        (dev / f"davinci{card}").touch()
    return JobSite(
        root=tmp_path, state=tmp_path, cache=tmp_path / "cache", environ=environ, cards=(0, 1), dev=dev
    )


def job(
    name: str,
    *,
    count: int = 1,
    kind: str = "npu",
    timeout: float = 600,
    program: Callable[[TaskContext], Measured] = show,
    holds_cards: bool = True,
) -> Job:
    device = {**NPU["device"], "kind": kind}
    check = make_check(
        name, Tier.NUMERICS, run=program, device=True, timeout_s=timeout, holds_cards=holds_cards
    )
    return Job(task=make_task(check, facets={"device": device, "recipe": {"nodes": 1, "cards": count}}))


def run(site: JobSite, *jobs: Job) -> dict[str, Outcome]:
    executor = LocalExecutor(site, jobs=len(jobs), patience=0.5)
    for one in jobs:
        executor.submit(one)
    outcomes: dict[str, Outcome] = {}
    while len(outcomes) < len(jobs):
        for finished in executor.collect(0.1):
            outcomes[finished.check] = finished
    return outcomes


def test_two_tasks_at_a_time_have_a_card_each(site: JobSite):
    together = threading.Barrier(2, timeout=90)

    def meet(context: TaskContext) -> Measured:
        together.wait()
        return show(context)

    found = run(site, job("a", program=meet), job("b", program=meet))
    assert {one.measurements["cards"] for one in found.values()} == {"0", "1"}
    assert CardLeases.of_host(site.environ).list_leases() == ()


def test_tasks_that_want_both_take_turns(site: JobSite):
    book, holds, met = CardLeases.of_host(site.environ), threading.Event(), threading.Event()

    def until_another_waits(context: TaskContext) -> Measured:
        holds.set()
        while not met.is_set():
            if any(one.card is None for one in book.list_leases()):
                met.set()
            time.sleep(0.02)
        return show(context)

    executor, first = LocalExecutor(site, jobs=2), job("first", count=2, program=until_another_waits)
    executor.submit(first)
    assert holds.wait(90)
    executor.submit(job("second", count=2))
    found: dict[str, Outcome] = {}
    while len(found) < 2:
        found |= {one.check: one for one in executor.collect(0.1)}
    assert {one.measurements["cards"] for one in found.values()} == {"0,1"}
    log = site.artifacts.get(found["second"].log).read_text()
    assert f"waiting for 2 of 2 cards: card 0: first {found['first'].key[:12]}" in log
    assert "on card 0, 1" in log


def finished_after_waiting(site: JobSite, executor: LocalExecutor, clock: LeapingClock, waiting: Job) -> list:
    """The outcome of a job that waits for its cards until the clock leaped."""
    with CardLeases.of_host(site.environ).lease([0, 1], 2, "somebody else"):
        executor.submit(waiting)
        while not any(one.card is None for one in CardLeases.of_host(site.environ).list_leases()):
            time.sleep(0.02)
        clock.mark.touch()
        assert executor.collect(0.0) == []
    while not (finished := executor.collect(0.1)):
        pass
    return list(finished)


def test_waiting_is_none_of_the_tasks_own_time(site: JobSite, tmp_path: Path, monkeypatch):
    clock, executor = LeapingClock(tmp_path / "a-day-later"), LocalExecutor(site, jobs=1)
    clock.install(monkeypatch)
    finished = finished_after_waiting(site, executor, clock, job("a"))
    assert finished[0].state is State.COMPLETED
    assert finished[0].measurements["cards"] in {"0", "1"}


def test_a_build_leaves_its_card_to_others_until_it_uses_it(site: JobSite):
    leases, seen = CardLeases.of_host(site.environ), []

    def build_and_probe(context: TaskContext) -> Measured:
        with leases.lease([0, 1], 2, "somebody else while this builds"):
            seen.append(show(context).measurements["cards"])
        with context.cards(), context.cards():
            seen.append(show(context).measurements["cards"])
            seen.append(len(leases.list_leases()))
        return show(context)

    (outcome,) = run(site, job("a", program=build_and_probe, holds_cards=False)).values()
    assert seen == ["", "0", 1]
    assert outcome.measurements["cards"] == ""
    assert leases.list_leases() == ()


def test_a_build_that_waits_for_its_card_does_not_use_up_its_time(site: JobSite, tmp_path, monkeypatch):
    clock, executor = LeapingClock(tmp_path / "a-day-later"), LocalExecutor(site, jobs=1)
    clock.install(monkeypatch)

    def probe(context: TaskContext) -> Measured:
        with context.cards():
            show(context)
        return show(context)

    finished = finished_after_waiting(site, executor, clock, job("a", program=probe, holds_cards=False))
    assert finished[0].state is State.COMPLETED


def test_a_card_that_vanished_during_a_probe_is_no_failure_of_the_cell(site: JobSite):
    def probe(context) -> Measured:
        with context.cards():
            return lose_it(context)

    (outcome,) = run(site, job("a", program=probe, holds_cards=False)).values()
    assert "card 0 was lost while the task ran" in outcome.failure.message


def test_a_run_that_is_stopped_does_not_wait_on(site: JobSite):
    book = CardLeases.of_host(site.environ)
    with book.lease([0, 1], 2, "somebody else"):
        executor = LocalExecutor(site, jobs=1)
        executor.submit(job("a"))
        while not any(one.card is None for one in book.list_leases()):
            time.sleep(0.02)
        executor.cancel()
        finished = []
        while not finished:
            finished = executor.collect(0.1)
    assert finished[0].state is State.INTERRUPTED


def test_a_card_that_vanished_before_the_task_is_an_infrastructure_error(site: JobSite):
    (site.dev / "davinci0").unlink()
    (outcome,) = run(site, job("a", count=2)).values()
    assert outcome.state is State.ERROR
    assert outcome.failure.kind == "InfrastructureError"
    assert "card 0 was lost before the task used it" in outcome.failure.message
    assert "dmesg" in outcome.failure.fix


def lose_it(context) -> Measured:
    done = context.command(["sh", "-c", 'rm "$0"; exit 3', str(context.site.dev / "davinci0")])
    return Measured(measurements={"ok": done.returncode == 0}, evidence=Evidence.CPU)


def lose_it_and_raise(context) -> Measured:
    lose_it(context)
    raise RuntimeError("the program gave no result")


@pytest.mark.parametrize("program", [lose_it, lose_it_and_raise])
def test_a_card_that_vanished_meanwhile_is_no_failure_of_the_cell(site: JobSite, program):
    check = make_check("a", Tier.NUMERICS, run=program, device=True)
    facets = {**NPU, "recipe": {"nodes": 1, "cards": 1}}
    (outcome,) = run(site, Job(task=make_task(check, facets=facets))).values()
    assert outcome.state is State.ERROR
    assert outcome.failure.kind == "InfrastructureError"
    assert "card 0 was lost while the task ran" in outcome.failure.message
    assert CardLeases.of_host(site.environ).list_leases() == ()


def test_simulated_and_static_tasks_lease_nothing(site: JobSite):
    (outcome,) = run(site, job("a", kind="sim")).values()
    assert outcome.measurements["cards"] == ""
    assert not (site.state / "leases").exists()


def test_more_cards_than_the_host_has(site: JobSite):
    (outcome,) = run(site, job("a", count=8)).values()
    assert outcome.state is State.ERROR
    assert "8 cards were requested, but only 2 can be used here" in outcome.failure.message
