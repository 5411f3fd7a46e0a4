"""Which tasks of a plan may run now, and why the others may not: decisions only, no effects."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.check import Check
from harness.ledger.plan_record import PlanEntry
from harness.outcome import Judgement, Outcome, State, Status
from harness.plan.change.rerun_reasons import changed_input_reason
from harness.plan.cost.task_order import order_tasks
from harness.plan.tasks.task import STOPPING, Plan, Task
from harness.run.scheduling.run_result import TaskResult

Judge = Callable[[Check, Outcome], Judgement]


class Phase(enum.Enum):
    """Where an entry of the plan stands."""

    SKIPPED = "skipped"
    DONE = "done"
    WANTED = "wanted"
    WAITING = "waiting"
    BLOCKED = "blocked"


@dataclass(frozen=True, kw_only=True)
class EntryDecision:
    """The phase of one entry, and the reason where it is not going to run."""

    entry: PlanEntry
    phase: Phase
    reason: str = ""


class QueueRank(NamedTuple):
    """A task's place in the queue, smallest first; no two tasks have the same."""

    tier: int
    again: bool
    place: int
    key: str


class Schedule:
    """The state of one run over a plan.

    known: key -> reusable outcome. Tasks start in the order of `harness.plan.cost.task_order`, whatever
    order cells
    come in; seconds and failure_rate are by check, cards by cell.

    A task runs when an entry wants it, or a task that is wanted needs it. An entry wants its task unless a
    need has failed, or unless (without `keep_going`) its cell has failed a cheaper tier; it waits until
    that is known.
    """

    def __init__(
        self,
        plan: Plan,
        known: Mapping[str, Outcome],
        judge: Judge,
        *,
        keep_going: bool = False,
        failed_before: Collection[str] = (),
        seconds: Mapping[str, float] | None = None,
        failure_rate: Mapping[str, float] | None = None,
        cards: Mapping[str, int] | None = None,
    ) -> None:
        self.plan = plan
        self.running: set[str] = set()
        self.stopped = False
        self._judge = judge
        self._keep_going = keep_going
        self._seconds = seconds or {}
        self._results: dict[str, TaskResult] = {}
        self._fallback: dict[str, TaskResult] = {}
        self._accepted: set[str] = set()
        self._cells = _by_cell(plan.entries)
        self._cells_of = _cells_of_keys(plan)
        self._dependents = _dependents(plan)
        self._decisions: dict[str, tuple[EntryDecision, ...]] = {}
        self._undecided = set(self._cells)
        self._demands: dict[str, frozenset[str]] = {}
        self._demand: Counter[str] = Counter()
        turns = order_tasks(
            plan,
            seconds={key: self.seconds(task) for key, task in plan.tasks.items()},
            failed_before=frozenset(failed_before),
            failure_rate=failure_rate,
            cards=cards,
        )
        self._ranks = {
            turn.key: QueueRank(plan.tasks[turn.key].check.tier.rank, again=False, place=place, key=turn.key)
            for place, turn in enumerate(turns)
        }
        self._queue: list[QueueRank] = []
        for key, outcome in known.items():
            if key in plan.tasks:
                self._results[key] = self._result(outcome, reused=True)

    def ready(self, limit: int) -> list[Task]:
        """The first `limit` tasks that may start now, in order; none when the run is being stopped."""
        if self.stopped:
            return []
        self._update_decisions()
        return [self.plan.tasks[rank.key] for rank in self._queue[:limit]]

    def unverified_inputs(self, task: Task) -> list[TaskResult]:
        """Reused outcomes that `task` builds upon and that nobody has yet looked at in this run."""
        results = [self._results[need] for need in task.needs]
        return [one for one in results if one.reused and one.outcome.key not in self._accepted]

    def accept_reused(self, key: str) -> None:
        """The reused outcome of `key` can be built upon."""
        self._accepted.add(key)

    def discard_reused(self, key: str) -> None:
        """The reused outcome of `key` cannot be built upon: its task runs again, because a task needs it."""
        self._fallback[key] = self._results.pop(key)
        self._mark_undecided(key)

    def discard_outdated_dependents(self, key: str) -> dict[str, str]:
        """Distrust earlier outcomes that were built on another answer of this task; key -> why."""
        outcomes = {name: result.outcome for name, result in self._results.items()}
        renewed = {
            other: changed_input_reason(self.plan.tasks[other], result.outcome, outcomes)
            for other in self._dependents.get(key, ())
            if (result := self._results.get(other)) is not None and result.reused
        }
        renewed = {other: reason for other, reason in renewed.items() if reason}
        for other in renewed:
            self.discard_reused(other)
        return renewed

    def inputs(self, task: Task) -> dict[str, Outcome]:
        """Check name -> outcome of each need; KeyError unless the task is ready."""
        outcomes = [self._results[need].outcome for need in task.needs]
        return {outcome.check: outcome for outcome in outcomes}

    def has_inputs(self, task: Task) -> bool:
        """Whether every need of the task has an outcome."""
        return all(need in self._results for need in task.needs)

    def start(self, key: str) -> None:
        """The task has been submitted."""
        self.running.add(key)
        self._update_queue([key])

    def finish(self, outcome: Outcome) -> Judgement:
        """The task has ended for good; returns what its check says."""
        result = self._result(outcome, reused=False)
        self.running.discard(outcome.key)
        # What was cut off by stopping is left over for the run that resumes; it answers nothing.
        if not (self.stopped and outcome.state is State.INTERRUPTED):
            self._results[outcome.key] = result
            self._mark_undecided(outcome.key)
        return result.judgement

    def judge(self, outcome: Outcome) -> Judgement:
        """What the check of the outcome's task says of it."""
        return self._judge(self.plan.tasks[outcome.key].check, outcome)

    def retry(self, key: str) -> None:
        """The task has ended without an answer and runs once more, after everything else of its tier."""
        self.running.discard(key)
        self._ranks[key] = self._ranks[key]._replace(again=True)
        self._update_queue([key])

    def result(self, key: str) -> TaskResult | None:
        """What is known of a task: this run's result, or else the one it had before."""
        return self._results.get(key) or self._fallback.get(key)

    def decisions(self) -> tuple[EntryDecision, ...]:
        """Every entry of the plan, in its order, with where it stands."""
        self._update_decisions()
        by_entry = {
            (decision.entry.cell_id, decision.entry.check): decision
            for decisions in self._decisions.values()
            for decision in decisions
        }
        return tuple(by_entry[entry.cell_id, entry.check] for entry in self.plan.entries)

    def left(self) -> list[Task]:
        """The tasks that run or, if nothing else fails, are going to."""
        self._update_decisions()
        waiting = {
            decision.entry.key
            for decisions in self._decisions.values()
            for decision in decisions
            if decision.phase is Phase.WAITING
        }
        return [self.plan.tasks[key] for key in self._demand.keys() | waiting | self.running]

    def seconds(self, task: Task) -> float:
        """How long the task is likely to take."""
        return self._seconds.get(task.check.name, task.expected_s)

    def _result(self, outcome: Outcome, *, reused: bool) -> TaskResult:
        return TaskResult(outcome=outcome, judgement=self.judge(outcome), reused=reused)

    def _mark_undecided(self, key: str) -> None:
        self._undecided.update(self._cells_of.get(key, ()))

    def _update_decisions(self) -> None:
        """Decide the cells that a result has touched; the others stand as they are, however many they be."""
        for cell in self._undecided:
            decisions = decide_cell(
                self._cells[cell], self._results, self.plan.tasks, keep_going=self._keep_going
            )
            before, after = self._demands.get(cell, frozenset()), self._demanded(decisions)
            self._decisions[cell], self._demands[cell] = decisions, after
            self._demand.subtract(before)
            self._demand.update(after)
            for key in before - after:
                if not self._demand[key]:
                    del self._demand[key]
            self._update_queue(before | after)
        self._undecided.clear()

    def _update_queue(self, keys: Iterable[str]) -> None:
        """Put keys into the queue or take them out, as they may start now or not."""
        for key in keys:
            rank = self._ranks[key]
            place = bisect_left(self._queue, rank)
            queued = place < len(self._queue) and self._queue[place] == rank
            wanted = key in self._demand and key not in self.running and self._has_inputs(key)
            if wanted and not queued:
                self._queue.insert(place, rank)
            elif queued and not wanted:
                del self._queue[place]

    def _demanded(self, decisions: Iterable[EntryDecision]) -> frozenset[str]:
        """Keys without a result that a wanting entry needs, itself or through others."""
        pending = [decision.entry.key for decision in decisions if decision.phase is Phase.WANTED]
        demanded: set[str] = set()
        while pending:
            key = pending.pop()
            if key not in demanded and key not in self._results:
                demanded.add(key)
                pending.extend(self.plan.tasks[key].needs)
        return frozenset(demanded)

    def _has_inputs(self, key: str) -> bool:
        """Whether every need has a result that nothing still to run can make an earlier answer of."""
        return all(need in self._results and self._is_settled(need) for need in self.plan.tasks[key].needs)

    def _is_settled(self, key: str) -> bool:
        if not self._results[key].reused:
            return True
        return all(
            need not in self._demand and need not in self.running and self._is_settled(need)
            for need in self.plan.tasks[key].needs
            if need in self._results or need in self._demand
        )


def decide_cell(
    entries: Sequence[PlanEntry],
    results: Mapping[str, TaskResult],
    tasks: Mapping[str, Task],
    *,
    keep_going: bool,
) -> tuple[EntryDecision, ...]:
    """Where each entry of one cell stands, in the order given; pure."""
    decided: dict[int, EntryDecision] = {}
    for index, entry in sorted(enumerate(entries), key=lambda item: item[1].tier.rank):
        cheaper = [one for one in decided.values() if one.entry.tier.rank < entry.tier.rank]
        decided[index] = _decide(entry, () if keep_going else cheaper, results, tasks)
    return tuple(decided[index] for index in range(len(entries)))


def _decide(
    entry: PlanEntry,
    cheaper: Iterable[EntryDecision],
    results: Mapping[str, TaskResult],
    tasks: Mapping[str, Task],
) -> EntryDecision:
    if entry.skip is not None:
        return EntryDecision(entry=entry, phase=Phase.SKIPPED, reason=entry.skip.reason)
    if entry.key in results:
        return EntryDecision(entry=entry, phase=Phase.DONE)
    obstacle = _failed_need(entry.key, results, tasks)
    if obstacle:
        return EntryDecision(entry=entry, phase=Phase.BLOCKED, reason=obstacle)
    waiting = False
    for decision in cheaper:
        if decision.phase is Phase.BLOCKED:
            return EntryDecision(entry=entry, phase=Phase.BLOCKED, reason=decision.reason)
        if decision.phase is Phase.DONE:
            judgement = results[decision.entry.key].judgement
            if judgement.status in STOPPING and tasks[decision.entry.key].check.stops:
                reason = _failure(decision.entry.check, judgement)
                return EntryDecision(entry=entry, phase=Phase.BLOCKED, reason=reason)
        waiting = waiting or decision.phase in (Phase.WANTED, Phase.WAITING)
    return EntryDecision(entry=entry, phase=Phase.WAITING if waiting else Phase.WANTED)


def _failed_need(key: str, results: Mapping[str, TaskResult], tasks: Mapping[str, Task]) -> str:
    """Why a task can never run: a need, its own or one further down, that did not pass or is not planned."""
    pending, seen = [key], {key}
    while pending:
        task = tasks.get(pending.pop())
        if task is None:
            return "it needs a task that is not in this plan"
        for need in task.needs:
            result = results.get(need)
            if result is None and need not in seen:
                seen.add(need)
                pending.append(need)
            elif result is not None and result.judgement.status is not Status.PASS:
                return _failure(tasks[need].check.name, result.judgement)
    return ""


def _failure(check: str, judgement: Judgement) -> str:
    words = {Status.FAIL: "failed", Status.ERROR: "ended in an error", Status.NOT_RUN: "was not run"}
    word = words.get(judgement.status, f"is {judgement.status.value}")
    return f"{check} {word}" + (f": {judgement.reasons[0]}" if judgement.reasons else "")


def _dependents(plan: Plan) -> dict[str, list[str]]:
    """Key -> the keys of the tasks that need it."""
    dependents: dict[str, list[str]] = {}
    for key, task in plan.tasks.items():
        for need in task.needs:
            dependents.setdefault(need, []).append(key)
    return dependents


def _by_cell(entries: Iterable[PlanEntry]) -> dict[str, list[PlanEntry]]:
    cells: dict[str, list[PlanEntry]] = {}
    for entry in entries:
        cells.setdefault(entry.cell_id, []).append(entry)
    return cells


def _cells_of_keys(plan: Plan) -> dict[str, set[str]]:
    """Key -> the cells whose decisions depend on it: those that have it, and those that need it."""
    cells: dict[str, set[str]] = {}
    for entry in plan.entries:
        pending = [entry.key] if entry.key else []
        while pending:
            key = pending.pop()
            if entry.cell_id not in cells.setdefault(key, set()):
                cells[key].add(entry.cell_id)
                if key in plan.tasks:
                    pending.extend(plan.tasks[key].needs)
    return cells
