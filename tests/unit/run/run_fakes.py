"""Checks, plans, an executor and clocks without effects, for tests of harness/run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.check import Check, TaskContext
from harness.digest import digest_json
from harness.ledger.plan_record import PlanEntry, Skip
from harness.ledger.run_record import Disposition
from harness.outcome import Evidence, Failure, Judgement, Measured, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.run.jobs.job import Job
from harness.run.scheduling.run_result import RunResult


def measure_ok(_context: TaskContext) -> Measured:
    return Measured(measurements={"ok": True}, evidence=Evidence.STATIC)


def judge_ok(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    if measurements["ok"]:
        return Judgement(status=Status.PASS)
    return Judgement(status=Status.FAIL, reasons=("it is not ok",))


def judge(check: Check, outcome: Outcome) -> Judgement:
    if outcome.state is State.COMPLETED:
        return check.judge(outcome.measurements, check.params)
    status = Status.FAIL if outcome.state is State.TIMEOUT else Status.ERROR
    return Judgement(status=status, reasons=(outcome.failure.message if outcome.failure else "",))


def make_check(name: str, tier: Tier = Tier.STATIC, **changes: Any) -> Check:
    given = {
        "question": f"does {name} hold?",
        "facets": (),
        "run": measure_ok,
        "judge": judge_ok,
        **changes,
    }
    return Check(name=name, tier=tier, **given)


def make_task(
    check: Check, *, facets: Mapping[str, Any] | None = None, needs: Sequence[Task] = (), key: str = ""
) -> Task:
    facets = facets or {}
    return Task(
        key=key or digest_json([check.name, facets]),
        check=check,
        facets=facets,
        facet_digests={name: digest_json(value) for name, value in facets.items()},
        code_digest="c0de",
        needs=tuple(task.key for task in needs),
        expected_s=check.expected_s,
    )


def entry(cell: str, task: Task) -> PlanEntry:
    return PlanEntry(
        cell_id=cell,
        check=task.check.name,
        tier=task.check.tier,
        question=task.check.question,
        key=task.key,
    )


def skipped(cell: str, check: Check) -> PlanEntry:
    skip = Skip(status=Status.NOT_RUN, reason="no NPU on this host")
    return PlanEntry(cell_id=cell, check=check.name, tier=check.tier, question=check.question, skip=skip)


def make_plan(entries: Sequence[PlanEntry], tasks: Sequence[Task]) -> Plan:
    return Plan(
        profile="test",
        matrix_digest="m",
        cells=(),
        entries=tuple(entries),
        tasks={task.key: task for task in tasks},
    )


def outcome_of(task: Task, *, ok: bool = True, state: State = State.COMPLETED, **changes: Any) -> Outcome:
    failure = None if state is State.COMPLETED else Failure(kind="InfrastructureError", message="broken")
    given = {
        "measurements": {"ok": ok} if state is State.COMPLETED else {},
        "failure": failure,
        "started": 1.0,
        "finished": 2.0,
        **changes,
    }
    return Outcome(
        key=task.key,
        check=task.check.name,
        tier=task.check.tier,
        state=state,
        evidence=Evidence.STATIC,
        facets=task.facet_digests,
        **given,
    )


class FakeClock:
    """A clock that advances by 0.1 seconds at each call."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


class LeapingClock:
    """Replaces the module `time` in harness/run. Its clock jumps a day ahead once the file `mark` exists.

    A program creates this file when it has reached the point at which its time limit shall end it.
    """

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def monotonic(self) -> float:
        return time.monotonic() + (86_400.0 if self.mark.exists() else 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def install(self, monkeypatch: Any) -> None:
        """Use this clock for all time limits."""
        for module in ("jobs.task_context", "executors.executor", "programs.process"):
            monkeypatch.setattr(f"harness.run.{module}.time", self)


class FakeExecutor:
    """Returns prepared outcomes for jobs, in random order, and records the jobs.

    answers: key -> outcomes of its attempts, in order. Other jobs pass.
    """

    def __init__(
        self,
        slots: int = 2,
        answers: Mapping[str, list[Callable[[Task], Outcome]]] | None = None,
        seed: int = 0,
    ) -> None:
        self.slots = slots
        self.started: list[Job] = []
        self.answers = {key: list(queue) for key, queue in (answers or {}).items()}
        self.cancelled = False
        self.on_collect: Callable[[], None] = lambda: None
        self._random = random.Random(seed)
        self._running: list[Job] = []

    def has_room(self, _task: Task) -> bool:
        return len(self._running) < self.slots

    def submit(self, job: Job) -> None:
        assert len(self._running) < self.slots, "more jobs than slots"
        self.started.append(job)
        self._running.append(job)

    def collect(self, timeout: float) -> list[Outcome]:
        self.on_collect()
        if not self._running:
            return []
        count = 1 if not self.cancelled else len(self._running)
        picked = [self._running.pop(self._random.randrange(len(self._running))) for _ in range(count)]
        return [self._outcome(job) for job in picked]

    def last_lines(self) -> Mapping[str, str]:
        return {job.task.key: "working" for job in self._running}

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self._running.clear()

    def _outcome(self, job: Job) -> Outcome:
        number = float(len(self.started))
        inputs = {name: outcome.content_digest for name, outcome in job.inputs.items()}
        extra = {"run_id": job.run_id, "started": number, "finished": number + 1, "inputs": inputs}
        if self.cancelled:
            return outcome_of(job.task, state=State.INTERRUPTED, **extra)
        queue = self.answers.get(job.task.key)
        made = queue.pop(0)(job.task) if queue else outcome_of(job.task)
        return Outcome(**{**vars(made), **extra})


def unfinished(result: RunResult) -> tuple[Disposition, ...]:
    """The entries of a run that were planned, but neither run nor blocked nor skipped."""
    return tuple(entry for entry in result.without_outcome if entry.status is Status.ERROR)
