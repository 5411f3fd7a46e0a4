"""Decides which tasks of a plan may run now, and why others may not. Has no effects."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from harness.check import Check
from harness.outcome import Judgement, Outcome, State
from harness.plan.change.rerun_reasons import changed_input_reason
from harness.plan.cost.task_order import order_tasks
from harness.plan.tasks.cell_decisions import EntryDecision, Phase, decide_cell, entries_by_cell
from harness.plan.tasks.task import Plan, Task
from harness.run.scheduling.run_result import TaskResult

Judge = Callable[[Check, Outcome], Judgement]


class QueueRank(NamedTuple):
    """The sort key of a task in the queue. No two tasks have the same rank.

    retried: the task failed and runs again, after the other tasks of its tier. turn: its index in
    `order_tasks`.
    """

    tier: int
    retried: bool
    turn: int
    key: str


class Schedule:
    """The state of one run of a plan.

    known: key -> reusable outcome. seconds, failure_rate: by check. cards: by cell. failed_before: keys of
    tasks that failed in the previous run and therefore start early.

    A task runs if an entry requires it, or if a required task needs it. An entry requires its task unless one
    of its needs failed or, without `keep_going`, its cell failed a cheaper tier. Until that is known, the
    entry waits. `harness.plan.cost.task_order` determines the order of the tasks of a tier.
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
        self._accepted: set[str] = set()
        self._cells = entries_by_cell(plan.entries)
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
            turn.key: QueueRank(plan.tasks[turn.key].check.tier.rank, retried=False, turn=index, key=turn.key)
            for index, turn in enumerate(turns)
        }
        self._queue: list[QueueRank] = []
        for key, outcome in known.items():
            if key in plan.tasks:
                self._results[key] = self._result(outcome, reused=True)

    def ready(self) -> list[Task]:
        """The tasks that may start now, in order; none while the run is being stopped."""
        if self.stopped:
            return []
        self._update_decisions()
        return [self.plan.tasks[rank.key] for rank in self._queue]

    def unverified_inputs(self, task: Task) -> list[TaskResult]:
        """The outcomes among the inputs of `task` that were not produced or verified in this run, or are
        doubted since then."""
        results = [self._results[need] for need in task.needs]
        return [result for result in results if result.outcome.key not in self._accepted]

    def accept(self, key: str) -> None:
        """Note that the outcome of `key` can be an input of other tasks."""
        self._accepted.add(key)

    def doubt(self, keys: Iterable[str]) -> None:
        """Note that the outcomes of `keys` must be verified before they are inputs of further tasks."""
        self._accepted.difference_update(keys)

    def discard(self, key: str) -> None:
        """Note that the outcome of `key` is not used, so that its task runs again."""
        del self._results[key]
        self._mark_undecided(key)

    def discard_outdated_dependents(self, key: str) -> dict[str, str]:
        """Discard reused outcomes whose input was another outcome of this task; returns key -> reason."""
        outdated: dict[str, str] = {}
        dependents = self._dependents.get(key, ())
        outcomes = {name: result.outcome for name, result in self._results.items()} if dependents else {}
        for other in dependents:
            result = self._results.get(other)
            if result is not None and result.reused:
                reason = changed_input_reason(self.plan.tasks[other], result.outcome, outcomes)
                if reason:
                    outdated[other] = reason
        for other in outdated:
            self.discard(other)
        return outdated

    def inputs(self, task: Task) -> dict[str, Outcome]:
        """Check name -> outcome of each need; KeyError unless the task is ready."""
        outcomes = [self._results[need].outcome for need in task.needs]
        return {outcome.check: outcome for outcome in outcomes}

    def has_inputs(self, task: Task) -> bool:
        """Whether every need of the task has an outcome."""
        return all(need in self._results for need in task.needs)

    def start(self, key: str) -> None:
        """Note that the task has been submitted."""
        self.running.add(key)
        self._update_queue([key])

    def finish(self, outcome: Outcome) -> Judgement:
        """Note the final outcome of a task; returns the judgement of its check."""
        result = self._result(outcome, reused=False)
        self.running.discard(outcome.key)
        # Tasks that were interrupted because the run is being stopped run again when the run is resumed.
        if not (self.stopped and outcome.state is State.INTERRUPTED):
            self._results[outcome.key] = result
            self._accepted.add(outcome.key)
            self._mark_undecided(outcome.key)
        return result.judgement

    def judge(self, outcome: Outcome) -> Judgement:
        """The judgement of the outcome by the check of its task."""
        return self._judge(self.plan.tasks[outcome.key].check, outcome)

    def retry(self, key: str) -> None:
        """Note that the task failed and will run again, after all other tasks of its tier."""
        self.running.discard(key)
        self._ranks[key] = self._ranks[key]._replace(retried=True)
        self._update_queue([key])

    def result(self, key: str) -> TaskResult | None:
        """The result of a task in this run, or its reused result of an earlier run."""
        return self._results.get(key)

    def decisions(self) -> tuple[EntryDecision, ...]:
        """The decision on every entry of the plan, in its order."""
        self._update_decisions()
        by_entry = {
            (decision.entry.cell_id, decision.entry.check): decision
            for decisions in self._decisions.values()
            for decision in decisions
        }
        return tuple(by_entry[entry.cell_id, entry.check] for entry in self.plan.entries)

    def remaining_tasks(self) -> list[Task]:
        """The tasks that are running, and those that will run if no other task fails."""
        self._update_decisions()
        waiting = {
            decision.entry.key
            for decisions in self._decisions.values()
            for decision in decisions
            if decision.phase is Phase.WAITING
        }
        return [self.plan.tasks[key] for key in self._demand.keys() | waiting | self.running]

    def seconds(self, task: Task) -> float:
        """The estimated duration of the task."""
        return self._seconds.get(task.check.name, task.expected_s)

    def _result(self, outcome: Outcome, *, reused: bool) -> TaskResult:
        return TaskResult(outcome=outcome, judgement=self.judge(outcome), reused=reused)

    def _judgement(self, key: str) -> Judgement | None:
        result = self._results.get(key)
        return result.judgement if result else None

    def _mark_undecided(self, key: str) -> None:
        self._undecided.update(self._cells_of.get(key, ()))

    def _update_decisions(self) -> None:
        """Decide again the cells that a new result affects. The decisions on other cells stay the same."""
        for cell in self._undecided:
            decisions = decide_cell(
                self._cells[cell], self._judgement, self.plan.tasks, keep_going=self._keep_going
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
        """Add the keys to the queue if their tasks may start now, otherwise remove them."""
        for key in keys:
            rank = self._ranks[key]
            index = bisect_left(self._queue, rank)
            is_queued = index < len(self._queue) and self._queue[index] == rank
            may_start = key in self._demand and key not in self.running and self._has_final_inputs(key)
            if may_start and not is_queued:
                self._queue.insert(index, rank)
            elif is_queued and not may_start:
                del self._queue[index]

    def _demanded(self, decisions: Iterable[EntryDecision]) -> frozenset[str]:
        """The keys without a result that an entry requires, directly or as a need of other tasks."""
        pending = [decision.entry.key for decision in decisions if decision.phase is Phase.REQUIRED]
        demanded: set[str] = set()
        while pending:
            key = pending.pop()
            if key not in demanded and key not in self._results:
                demanded.add(key)
                pending.extend(self.plan.tasks[key].needs)
        return frozenset(demanded)

    def _has_final_inputs(self, key: str) -> bool:
        """Whether every need has a result that no other task of this run can still make outdated."""
        return all(need in self._results and self._is_settled(need) for need in self.plan.tasks[key].needs)

    def _is_settled(self, key: str) -> bool:
        if not self._results[key].reused:
            return True
        return all(
            need not in self._demand and need not in self.running and self._is_settled(need)
            for need in self.plan.tasks[key].needs
            if need in self._results or need in self._demand
        )


def _dependents(plan: Plan) -> dict[str, list[str]]:
    """Key -> the keys of the tasks that need it."""
    dependents: dict[str, list[str]] = {}
    for key, task in plan.tasks.items():
        for need in task.needs:
            dependents.setdefault(need, []).append(key)
    return dependents


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
