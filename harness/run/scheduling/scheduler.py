"""Runs a plan: reuses outcomes of the ledger, executes the other tasks, and reports every entry."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.check import why_not_reusable, why_not_usable
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import Outcome, State, Status, Tier
from harness.plan.change.rerun_reasons import outdated_outcomes
from harness.plan.tasks.cell_decisions import EntryDecision, Phase
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.plan.tasks.task import Plan, Task
from harness.run.executors.executor import Executor
from harness.run.jobs.execute import INFRASTRUCTURE
from harness.run.jobs.job import Job
from harness.run.scheduling.altered_outcomes import altered_outcomes
from harness.run.scheduling.events import (
    EntryWithoutOutcome,
    Observer,
    Progress,
    RunEvent,
    RunFinished,
    RunMessage,
    RunStarted,
    TaskFinished,
    TaskStarted,
)
from harness.run.scheduling.run_result import RunResult
from harness.run.scheduling.schedule import Judge, Schedule
from harness.sources.secrets.masking import Masker

TICK_SECONDS = 0.25
# Storing one artifact never takes longer: older incomplete files are leftovers of killed processes.
UNFINISHED_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """The options of a run.

    keep_going: run the more expensive tiers of a cell even if it fails a tier. retries: how often a task runs
    again after an infrastructure error; other failures are never retried. rerun: keys whose stored outcomes
    are not reused. full: before tasks use a reused outcome, read everything that it describes.
    outdated: key -> why its stored outcome is not reused. failure_rate: check -> fraction of its tasks that
    fail. cards: cell -> number of cards that its recipe needs.
    """

    keep_going: bool = False
    retries: int = 1
    rerun: Collection[str] = frozenset()
    full: bool = False
    outdated: Mapping[str, str] = field(default_factory=dict)
    failure_rate: Mapping[str, float] = field(default_factory=dict)
    cards: Mapping[str, int] = field(default_factory=dict)


def run_plan(
    plan: Plan,
    ledger: Ledger,
    executor: Executor,
    judge: Judge,
    *,
    policy: RunPolicy | None = None,
    observer: Observer = lambda _event: None,
    stopped: Callable[[], bool] = lambda: False,
    argv: Sequence[str] = (),
    host: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> RunResult:
    """Execute the tasks that have no reusable outcome in the ledger, and record their outcomes at once.

    The caller ends the run with `ledger.finish_run(result.run_id, exit_code)`; a run that was not ended was
    killed. When `stopped()` becomes true, no more tasks start, running tasks are stopped, and the result is
    `interrupted`. The executor stays open. InfrastructureError if the ledger cannot be written.
    """
    policy = policy or RunPolicy()
    ledger.artifacts.clear_unfinished(before=time.time() - UNFINISHED_SECONDS)
    masker = Masker.of_command(os.environ)
    run_id = ledger.begin_run(
        plan.record(), masker.json(tuple(argv)), masker.json(dict(host or {})), now=clock()
    )
    run = _Run(plan, ledger, executor, judge, policy, observer, clock, run_id)
    return run.go(stopped)


@dataclass(kw_only=True)
class _Counts:
    executed: int = 0
    errors: int = 0
    retries: Counter[str] = field(default_factory=Counter)


class _Run:
    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        executor: Executor,
        judge: Judge,
        policy: RunPolicy,
        observer: Observer,
        clock: Callable[[], float],
        run_id: str,
    ) -> None:
        self._plan, self._ledger, self._executor = plan, ledger, executor
        self._policy, self._observer, self._clock, self._run_id = policy, observer, clock, run_id
        self._counts = _Counts()
        self._why: dict[str, str] = {}
        self._progress_reported_at = 0.0
        self._observer_alive = True
        self._cells = _cells_by_key(plan)
        known = ledger.get_many(key for key in plan.tasks if key not in policy.rerun)
        for key in _failed_needs(plan, policy.rerun, known, judge):
            del known[key]
        for key, outcome in list(known.items()):
            check = plan.tasks[key].check
            reason = (
                policy.outdated.get(key)
                or bounded_outcome(plan.tasks[key], outcome).outcome.trust.claimed
                or why_not_reusable(check, outcome, judge(check, outcome))
            )
            if reason:
                self._why[key] = reason
                del known[key]
        altered = altered_outcomes(plan.tasks, known, ledger.artifacts)
        for key, reason in (outdated_outcomes(plan.tasks, known) | altered).items():
            self._why[key] = reason
            del known[key]
        self._schedule = Schedule(
            plan,
            known,
            judge,
            keep_going=policy.keep_going,
            failed_before=failed_in_previous_run(plan, ledger, judge, run_id, set(plan.tasks) - set(known)),
            seconds=ledger.typical_seconds(),
            failure_rate=policy.failure_rate,
            cards=policy.cards,
        )

    def go(self, stopped: Callable[[], bool]) -> RunResult:
        started = self._clock()
        self._announce()
        while True:
            if stopped() and not self._schedule.stopped:
                self._stop()
            self._submit()
            if not self._schedule.running:
                break
            for outcome in self._executor.collect(TICK_SECONDS):
                self._handle_outcome(outcome)
            self._report_progress()
        return self._result(self._clock() - started)

    def _submit(self) -> None:
        # Tasks for one kind of host must not wait behind those for another kind, all of whose hosts are busy.
        while True:
            for task in self._schedule.ready():
                if not self._executor.has_room(task):
                    continue
                if not self._verify_inputs(task):
                    # A task that produces an input runs again, so other tasks may not be ready any more.
                    break
                self._start(task)
            else:
                return

    def _verify_inputs(self, task: Task) -> bool:
        verified = True
        for result in self._schedule.unverified_inputs(task):
            key = result.outcome.key
            reason = self._unusable_reason(result.outcome)
            if reason:
                self._why[key] = reason
                self._schedule.discard(key)
                verified = False
            else:
                self._schedule.accept(key)
        return verified

    def _unusable_reason(self, outcome: Outcome) -> str:
        """Why an outcome cannot be an input of a task, or ""."""
        missing = [ref.name for ref in outcome.artifacts if not self._ledger.artifacts.is_intact(ref)]
        if missing:
            return f"its artifact {missing[0]} no longer exists or was changed"
        return why_not_usable(self._plan.tasks[outcome.key].check, outcome, full=self._policy.full)

    def _start(self, task: Task) -> None:
        attempt = self._ledger.next_attempt(task.key)
        job = replace(self._job(task), attempt=attempt)
        self._schedule.start(task.key)
        self._executor.submit(job)
        self._notify(
            TaskStarted(
                at=self._clock(),
                key=task.key,
                check=task.check.name,
                tier=task.check.tier,
                cells=self._cells.get(task.key, ()),
                attempt=attempt,
                expected_s=self._schedule.seconds(task),
                why=self._why.get(task.key, ""),
            )
        )

    def _job(self, task: Task) -> Job:
        needs = [self._plan.tasks[key] for key in task.needs]
        return Job(
            task=task,
            inputs=self._schedule.inputs(task),
            remakes={need.check.name: self._job(need) for need in needs if self._schedule.has_inputs(need)},
            run_id=self._run_id,
            cells=self._cells.get(task.key, ()),
        )

    def _report_progress(self) -> None:
        now = self._clock()
        if now - self._progress_reported_at < TICK_SECONDS:
            return
        self._progress_reported_at = now
        remaining = self._schedule.remaining_tasks()
        self._notify(
            Progress(
                at=now,
                last_lines=self._executor.last_lines(),
                left=len(remaining),
                left_s=sum(map(self._schedule.seconds, remaining)) / max(1, self._executor.slots),
            )
        )

    def _handle_outcome(self, outcome: Outcome) -> None:
        outcome = self._ledger.record(outcome)
        task = self._plan.tasks[outcome.key]
        if outcome.state is State.ERROR:
            # Its inputs may be the cause: a task may have changed its environment.
            self._schedule.doubt(task.needs)
        retried = self._retries(outcome)
        if retried:
            self._counts.retries[outcome.key] += 1
            judgement = self._schedule.judge(outcome)
            self._schedule.retry(outcome.key)
        else:
            judgement = self._schedule.finish(outcome)
            self._why |= self._schedule.discard_outdated_dependents(outcome.key)
            self._counts.executed += 1
            self._counts.errors += outcome.state is State.ERROR
        self._notify(
            TaskFinished(
                at=self._clock(),
                key=outcome.key,
                check=outcome.check,
                tier=task.check.tier,
                cells=self._cells.get(outcome.key, ()),
                outcome=outcome,
                judgement=judgement,
                retried=retried,
            )
        )

    def _retries(self, outcome: Outcome) -> bool:
        return (
            outcome.state is State.ERROR
            and outcome.failure is not None
            and outcome.failure.kind == INFRASTRUCTURE
            and self._counts.retries[outcome.key] < self._policy.retries
            and not self._schedule.stopped
        )

    def _stop(self) -> None:
        self._schedule.stopped = True
        self._executor.cancel()
        running = len(self._schedule.running)
        self._notify(
            RunMessage(
                at=self._clock(), text=f"stopping {running} running task(s); interrupt again to force it"
            )
        )

    def _announce(self) -> None:
        for notice in self._ledger.notices:
            self._notify(RunMessage(at=self._clock(), text=str(notice)))
        reused = Counter[Tier]()
        to_run = Counter[Tier]()
        seconds = 0.0
        for task in self._plan.tasks.values():
            if self._schedule.result(task.key):
                reused[task.check.tier] += 1
            else:
                to_run[task.check.tier] += 1
                seconds += self._schedule.seconds(task)
        self._notify(
            RunStarted(
                at=self._clock(),
                run_id=self._run_id,
                entries=len(self._plan.entries),
                reused=reused,
                to_run=to_run,
                expected_s=seconds / max(1, self._executor.slots),
            )
        )

    def _result(self, seconds: float) -> RunResult:
        decisions = self._schedule.decisions()
        without_outcome = tuple(
            self._disposition(decision)
            for decision in decisions
            if decision.entry.skip is not None or self._schedule.result(decision.entry.key) is None
        )
        self._ledger.record_dispositions(self._run_id, without_outcome, now=self._clock())
        tiers = {decision.entry.check: decision.entry.tier for decision in decisions}
        for disposition in without_outcome:
            self._notify(
                EntryWithoutOutcome(
                    at=self._clock(),
                    cell_id=disposition.cell_id,
                    check=disposition.check,
                    tier=tiers[disposition.check],
                    status=disposition.status,
                    reason=disposition.reason,
                )
            )
        keys = dict.fromkeys(decision.entry.key for decision in decisions)
        result = RunResult(
            run_id=self._run_id,
            tasks={key: found for key in keys if (found := self._schedule.result(key))},
            without_outcome=without_outcome,
            executed=self._counts.executed,
            errors=self._counts.errors,
            retried=sum(self._counts.retries.values()),
            seconds=seconds,
            interrupted=self._schedule.stopped,
        )
        self._notify(
            RunFinished(
                at=self._clock(),
                run_id=self._run_id,
                executed=result.executed,
                reused=result.reused,
                left=len(without_outcome),
                seconds=seconds,
                interrupted=result.interrupted,
            )
        )
        return result

    def _disposition(self, decision: EntryDecision) -> Disposition:
        entry = decision.entry
        if entry.skip is not None:
            status, reason = entry.skip.status, entry.skip.reason
        elif decision.phase is Phase.BLOCKED:
            status, reason = Status.BLOCKED, decision.reason
        elif self._schedule.stopped:
            status = Status.ERROR
            reason = "the run was stopped before this check started; run the same command to resume it"
        else:
            status, reason = Status.ERROR, "it could not start: the needs of its task form a cycle"
        return Disposition(
            cell_id=entry.cell_id, check=entry.check, key=entry.key, status=status, reason=reason
        )

    def _notify(self, event: RunEvent) -> None:
        """Notify the observer. After an error of its terminal or file, the run continues without it."""
        if self._observer_alive:
            try:
                self._observer(event)
            except OSError:
                self._observer_alive = False


def _cells_by_key(plan: Plan) -> dict[str, tuple[str, ...]]:
    cells: dict[str, list[str]] = {}
    for entry in plan.entries:
        if entry.key:
            cells.setdefault(entry.key, []).append(entry.cell_id)
    return {key: tuple(names) for key, names in cells.items()}


def failed_in_previous_run(
    plan: Plan, ledger: Ledger, judge: Judge, run_id: str, keys: Iterable[str]
) -> frozenset[str]:
    """The keys whose cell and check failed in the previous run, even if the key was another one then."""
    candidates = set(keys)
    previous = next((run for run in ledger.runs(limit=2) if run.run_id != run_id), None)
    if previous is None or not candidates:
        return frozenset()
    previous_keys = {name: entry.key for name, entry in previous.plan.entries_by_name.items() if entry.key}
    pairs = [
        (entry.key, previous_keys[entry.cell_id, entry.check])
        for entry in plan.entries
        if entry.key in candidates and (entry.cell_id, entry.check) in previous_keys
    ]
    outcomes = ledger.latest(previous_key for _, previous_key in pairs)
    return frozenset(
        key
        for key, previous_key in pairs
        if previous_key in outcomes
        and judge(plan.tasks[key].check, outcomes[previous_key]).status is Status.FAIL
    )


def _failed_needs(
    plan: Plan, rerun: Collection[str], known: Mapping[str, Outcome], judge: Judge
) -> frozenset[str]:
    """The keys of tasks with a stored outcome that block a task that is to run again."""
    failed, seen, pending = set[str](), set[str](), [key for key in rerun if key in plan.tasks]
    while pending:
        for need in plan.tasks[pending.pop()].needs:
            if need in seen:
                continue
            seen.add(need)
            pending.append(need)
            if need in known and judge(plan.tasks[need].check, known[need]).status is not Status.PASS:
                failed.add(need)
    return frozenset(failed)
