"""The verdicts of earlier runs on the cells and checks of a plan, also if their inputs were different.

A key changes with every input, so a history belongs to a check of a cell and not to a key. The plan that an
earlier run stored has the key of that time; the outcome of this key is judged by the current check.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter

from harness.check import Check
from harness.ledger.plan_record import CodeRecord, PlanEntry, TaskRecord
from harness.ledger.run_record import RunRecord
from harness.ledger.store import Ledger
from harness.outcome import ANSWERED, Evidence, Status
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan, Task
from harness.report.model.hardware_run import HardwareRun
from harness.report.model.judged_outcomes import (
    JudgedOutcome,
    Pair,
    covers,
    expected_failures,
    judge_stored_outcome,
    measured_on,
    verdict_then,
)
from harness.report.model.marks import mark_of
from harness.report.model.report_inputs import ComparisonRun, RememberedRun
from harness.report.model.run_order import machine_name, order_by_time
from harness.report.model.runs_before import HISTORY_LENGTH, dispositions_of, revision_of, runs_before
from harness.report.model.streak import EarlierVerdict, History, HistoryEntry
from harness.report.model.turning_points import (
    BAD,
    ChangedPart,
    KeyAttempts,
    KeyDifference,
    RunOfTurn,
    Turn,
    turn_cause,
    turned,
)
from harness.verdict.verdict import (
    ExpectedFailure,
    Verdict,
)

MAX_CAUSES = 12
DAY_S = 86400.0
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def end_of_day(text: str) -> float | None:
    """The end of a day that is written as YYYY-MM-DD, in Unix seconds (UTC); None for anything else."""
    try:
        day = dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return day.timestamp() + DAY_S


class EarlierRuns:
    """The runs before a given run. Each key is read and judged once, however many runs and cells share it.

    now: Unix seconds; runs of later times have a wrong clock.
    """

    def __init__(self, plan: Plan, ledger: Ledger, run_id: str, now: float | None = None) -> None:
        self._plan = plan
        self._ledger = ledger
        self._checks: dict[str, Check] = {task.check.name: task.check for task in plan.tasks.values()}
        self._judged: dict[str, tuple[JudgedOutcome, ...]] = {}
        self._tasks: dict[str, Mapping[str, TaskRecord]] = {}
        #: What a history depends on (`_same_history`) -> the history, and the last of its runs on hardware.
        self._histories: dict[tuple[object, ...], tuple[History, HistoryEntry | None]] = {}
        self._on_hardware: dict[Pair, HistoryEntry] = {}
        self._differences: dict[tuple[str, str], KeyDifference | None] = {}
        self._run_id = run_id
        this_run = ledger.run(run_id)
        now = time.time() if now is None else now
        self._started = this_run.started if this_run else now
        in_ledger = runs_before(ledger, run_id, HISTORY_LENGTH * len(plan.entries))
        self._times = order_by_time(in_ledger[::-1], now)
        by_id = {run.run_id: run for run in in_ledger}
        self._runs = tuple(by_id[name] for name in self._times)[::-1]
        self._ends = ledger.run_ends()
        # Without a limit if the run is not in the ledger.
        self._end = self._ends.get(run_id, sys.maxsize)
        # Runs with one plan have one object for it.
        plans = {id(run.plan): run.plan for run in self._runs}
        by_plan = {number: plan.entries_by_name for number, plan in plans.items()}
        self._plans = list(by_plan.values())
        self._entries = [by_plan[id(run.plan)] for run in self._runs]
        known: dict[EarlierVerdict, EarlierVerdict] = {}
        self._without_outcome = [dispositions_of(ledger, run, known) for run in self._runs]
        self._expected = [expected_failures(run) for run in self._runs]

    @property
    def runs(self) -> tuple[RememberedRun, ...]:
        """The runs before this one, newest first."""
        return tuple(
            RememberedRun(
                run_id=run.run_id, started=run.started, revision=revision_of(run), machine=machine_name(run)
            )
            for run in self._runs
        )

    @property
    def previous(self) -> str | None:
        """The last earlier run that planned at least half of this plan, or None."""
        planned = {(entry.cell_id, entry.check) for entry in self._plan.entries}
        for run, entries in zip(self._runs, self._entries, strict=True):
            if 2 * len(planned & entries.keys()) >= len(planned) > 0:
                return run.run_id
        return None

    def history(
        self, entry: PlanEntry, expected: ExpectedFailure | None = None, *, other_than: str = ""
    ) -> History:
        """The verdicts of earlier runs on one check of one cell, oldest first, at most `HISTORY_LENGTH`.

        Runs of one machine are in the order of the ledger, because clocks can be set back, and those of
        several machines in the order of time. Equal histories are one object. expected: the expectation of
        today. other_than: the id of a run that is left out.
        """
        pair = (entry.cell_id, entry.check)
        same = (*self._same_history(entry, pair), expected, other_than)
        if same not in self._histories:
            self._histories[same] = self._new_history(entry, pair, expected, other_than)
        history, on_hardware = self._histories[same]
        if on_hardware:
            self._on_hardware[pair] = on_hardware
        return history

    def _same_history(self, entry: PlanEntry, pair: Pair) -> tuple[object, ...]:
        """What the history of an entry depends on; equal for cells that shared their tasks in all runs."""
        planned = [plan.get(pair) for plan in self._plans]
        left = [(index, id(run[pair])) for index, run in enumerate(self._without_outcome) if pair in run]
        foreseen = [(index, run[pair]) for index, run in enumerate(self._expected) if run and pair in run]
        tasks = [(one.key, one.skip) if one else None for one in planned]
        return (entry.key, entry.check, tuple(tasks), tuple(left), tuple(foreseen))

    def _new_history(
        self, entry: PlanEntry, pair: Pair, expected: ExpectedFailure | None, other_than: str
    ) -> tuple[History, HistoryEntry | None]:
        found: list[tuple[float, HistoryEntry]] = [
            (when, self._entry_of(index, entries[pair], without_outcome.get(pair), expected))
            for index, when, entries, without_outcome in self._oldest_first
            if pair in entries
        ]
        found += [
            (self._time_at(judged.position), judged)
            for judged in self._outcomes(entry.key, entry.check, None)
            if judged.run_id not in self._ends and judged.position <= self._end
        ]
        # Runs at the same time keep their order.
        entries = [past for _time, past in sorted(found, key=itemgetter(0))]
        on_hardware = (past for past in reversed(entries) if _was_on_hardware(past.verdict))
        last = entries[-HISTORY_LENGTH:]
        shown = History(past for past in last if not other_than or past.run_id != other_than)
        return shown, next(on_hardware, None)

    def last_on_hardware(self, entry: PlanEntry, now: Verdict) -> HardwareRun | None:
        """When hardware last ran a check of a cell, also with other inputs; after `history` of the entry."""
        last = self._on_hardware.get((entry.cell_id, entry.check))
        outcome = now.outcome
        if outcome is not None and (outcome.evidence is Evidence.HARDWARE or now.status is Status.CLAIMED):
            return HardwareRun(
                mark=mark_of(now.status, now.standing),
                time=outcome.started,
                run_id=outcome.run_id,
                machine=measured_on(outcome),
                foreign=outcome.trust.foreign,
                signer=outcome.trust.signer,
                claimed=outcome.trust.claimed,
            )
        if last is None:
            return None
        judged = next(iter(self._judged.get(last.verdict.key, ())), None)
        today = HistoryEntry(
            time=0.0, run_id=self._run_id, verdict=EarlierVerdict(status=now.status, key=entry.key)
        )
        difference = self._difference(last, today)
        return HardwareRun(
            mark=last.mark,
            time=last.measured,
            run_id=last.run_id,
            machine=last.machine,
            foreign=judged.trust.foreign if judged else False,
            signer=judged.trust.signer if judged else "",
            claimed=judged.trust.claimed if judged else "",
            stale=last.verdict.key != entry.key,
            changes=difference.changes if difference else (),
        )

    @cached_property
    def _oldest_first(
        self,
    ) -> list[tuple[int, float, Mapping[Pair, PlanEntry], Mapping[Pair, EarlierVerdict]]]:
        """Index, time, entries and dispositions of each run."""
        return [
            (index, self._times[run.run_id], self._entries[index], self._without_outcome[index])
            for index, run in reversed(list(enumerate(self._runs)))
        ]

    def _time_at(self, position: int) -> float:
        """When an outcome whose run is not stored was recorded: after the last run before it."""
        before = [self._times[run.run_id] for run in self._runs if self._ends[run.run_id] < position]
        return max(before, default=0.0)

    def turns(self, entry: PlanEntry, history: Sequence[HistoryEntry], now: Verdict) -> tuple[Turn, ...]:
        """When the verdict turned from pass to failure or back, oldest first, and why.

        history: that of the entry. now: the verdict of the reported run.
        """
        current = HistoryEntry(
            time=self._started,
            run_id=self._run_id,
            verdict=EarlierVerdict(
                status=now.status,
                reason=now.reasons[0] if now.reasons else "",
                evidence=now.evidence,
                key=entry.key,
                standing=now.standing,
            ),
            machine=measured_on(now.outcome),
        )
        return tuple(
            self._turn(entry, history, before, after, now if after is current else None)
            for before, after in turned([*history, current])
        )

    def _turn(
        self,
        entry: PlanEntry,
        history: Sequence[HistoryEntry],
        before: HistoryEntry,
        after: HistoryEntry,
        now: Verdict | None,
    ) -> Turn:
        old, new = before.verdict.key, after.verdict.key
        difference = self._difference(before, after)
        earlier, attempts = self._attempts(old), self._attempts(new)
        return Turn(
            cell_id=entry.cell_id,
            check=entry.check,
            better=after.verdict.status is Status.PASS,
            mark=after.mark if now is None else after.verdict.mark,
            reason=after.verdict.reason if after.verdict.status is not Status.PASS else before.verdict.reason,
            evidence=after.verdict.evidence,
            before=self._last_run_before(history, before),
            after=self._run_of_turn(after),
            cause=turn_cause(earlier, attempts, difference, {old, new}),
            difference=difference or KeyDifference(),
            # If only the inputs before the turn gave both verdicts, they are what is flaky.
            attempts=earlier if earlier.mixed and not attempts.mixed else attempts,
        )

    def _attempts(self, key: str) -> KeyAttempts:
        outcomes = self._judged.get(key, ())
        passed = [judged for judged in outcomes if judged.verdict.status is Status.PASS]
        failed = [judged for judged in outcomes if judged.verdict.status in BAD]
        return KeyAttempts(
            passed=len(passed),
            failed=len(failed),
            passed_on=_machines(passed),
            failed_on=_machines(failed),
        )

    def _run_of_turn(self, past: HistoryEntry) -> RunOfTurn:
        run = next((run for run in self._runs if run.run_id == past.run_id), None)
        revision = revision_of(run) if run else ""
        return RunOfTurn(run_id=past.run_id, time=past.time, revision=revision, machine=past.machine)

    def _last_run_before(self, history: Sequence[HistoryEntry], past: HistoryEntry) -> RunOfTurn:
        """The run of the last verdict before a turn.

        Machines without a checkout record no revision. The inputs are then those of an earlier run with the
        same key, so the commits since that run include the one that changed them.
        """
        found = self._run_of_turn(past)
        if found.revision:
            return found
        same = (one for one in reversed(history) if one.verdict.key == past.verdict.key)
        revisions = (self._run_of_turn(one).revision for one in same if one.time <= past.time)
        return replace(found, known_at=next((revision for revision in revisions if revision), ""))

    def _difference(self, before: HistoryEntry, after: HistoryEntry) -> KeyDifference | None:
        keys = (before.verdict.key, after.verdict.key)
        if keys not in self._differences:
            old, new = (self._stored_task(past) for past in (before, after))
            found = None
            if old and new and keys[0] != keys[1]:
                found = _key_difference(key_changes(old[0], new[0], old[1], new[1]))
            self._differences[keys] = found
        return self._differences[keys]

    def _stored_task(self, past: HistoryEntry) -> tuple[TaskRecord, CodeRecord] | None:
        """The task of a history's entry, and the code record of its plan."""
        key = past.verdict.key
        if past.run_id == self._run_id and key in self._plan.tasks:
            return self._plan.tasks[key].record(), self._plan.code
        for run in self._runs:
            if run.run_id == past.run_id and (task := self._tasks_of(run).get(key)):
                return task, run.plan.code
        return None

    def _tasks_of(self, run: RunRecord) -> Mapping[str, TaskRecord]:
        if run.run_id not in self._tasks:
            self._tasks[run.run_id] = run.plan.tasks_by_key
        return self._tasks[run.run_id]

    def earlier(self, run_id: str) -> ComparisonRun | None:
        """An earlier run to compare with: the verdicts on its whole plan, and which inputs differ."""
        run = next((run for run in self._runs if run.run_id == run_id), None) or self._ledger.run(run_id)
        if run is None:
            return None
        without_outcome = dispositions_of(self._ledger, run)
        entries = run.plan.entries_by_name
        expected = expected_failures(run)
        verdicts = {
            pair: self._verdict(run, entry, without_outcome.get(pair), expected)[0]
            for pair, entry in entries.items()
        }
        return ComparisonRun(
            run_id=run.run_id,
            started=run.started,
            revision=revision_of(run),
            verdicts=verdicts,
            causes=self._causes(run, entries),
        )

    def as_of(self, day: str, when: float) -> ComparisonRun:
        """The last verdicts of all runs until a time, to compare with. day: its name for readers."""
        verdicts: dict[Pair, EarlierVerdict] = {}
        causes: dict[Pair, tuple[str, ...]] = {}
        for entry in self._plan.entries:
            pair = (entry.cell_id, entry.check)
            known = [past for past in self.history(entry) if past.time <= when]
            answered = [past for past in known if past.verdict.status in ANSWERED]
            if not known:
                continue
            last = (answered or known)[-1]
            verdicts[pair] = last.verdict
            today = HistoryEntry(time=0.0, run_id=self._run_id, verdict=replace(last.verdict, key=entry.key))
            difference = self._difference(last, today)
            if difference:
                causes[pair] = difference.changes
        return ComparisonRun(run_id=f"all until {day}", started=when, verdicts=verdicts, causes=causes)

    def _causes(self, run: RunRecord, entries: Mapping[Pair, PlanEntry]) -> dict[Pair, tuple[str, ...]]:
        before, after = run.plan.tasks_by_key, self._plan.tasks
        explanations: dict[tuple[str, str], tuple[str, ...]] = {}
        causes: dict[Pair, tuple[str, ...]] = {}
        for entry in self._plan.entries:
            old = entries.get((entry.cell_id, entry.check))
            if old is None or old.key == entry.key or old.key not in before or entry.key not in after:
                continue
            both = (old.key, entry.key)
            if both not in explanations:
                changes = key_changes(
                    before[old.key], after[entry.key].record(), run.plan.code, self._plan.code
                )
                explanations[both] = tuple(_cause(change) for change in changes[:MAX_CAUSES])
            causes[entry.cell_id, entry.check] = explanations[both]
        return causes

    def _entry_of(
        self,
        index: int,
        entry: PlanEntry,
        without_outcome: EarlierVerdict | None,
        expected: ExpectedFailure | None,
    ) -> HistoryEntry:
        run = self._runs[index]
        verdict, judged = self._verdict(run, entry, without_outcome, self._expected[index])
        return HistoryEntry(
            time=run.started,
            run_id=run.run_id,
            verdict=verdict,
            reused=judged is not None and judged.run_id != run.run_id,
            figures=judged.figures if judged else (),
            expected_now=judged is not None and covers(expected, judged),
            machine=judged.machine if judged else "",
            measured=judged.measured if judged else 0.0,
        )

    def _verdict(
        self,
        run: RunRecord,
        entry: PlanEntry,
        without_outcome: EarlierVerdict | None,
        expected: Mapping[Pair, ExpectedFailure] | None,
    ) -> tuple[EarlierVerdict, JudgedOutcome | None]:
        """The verdict of `run` on an entry of its plan, and the outcome that the verdict is based on.

        without_outcome: the verdict that the run recorded for an entry that it did not execute. expected: the
        expectations of that run, None if it did not store them.
        """
        if entry.skip:
            return EarlierVerdict(status=entry.skip.status, reason=entry.skip.reason), None
        outcomes = self._outcomes(entry.key, entry.check, run)
        own = next((judged for judged in outcomes if judged.run_id == run.run_id), None)
        if own is not None:
            return verdict_then(own, entry, expected), own
        if without_outcome is not None:
            return without_outcome, None
        if self._ledger.lost.outcome_of_run(run.run_id, entry.key):
            reason = "the outcome of this run was lost when the ledger was damaged"
            return EarlierVerdict(status=Status.NOT_RUN, reason=reason, key=entry.key), None
        end = self._ends[run.run_id]
        reused = next((judged for judged in outcomes if judged.completed and judged.position <= end), None)
        if reused is not None:
            return verdict_then(reused, entry, expected), reused
        reason = "this run has no outcome that can still be read"
        return EarlierVerdict(status=Status.NOT_RUN, reason=reason, key=entry.key), None

    def _outcomes(self, key: str, check: str, run: RunRecord | None) -> tuple[JudgedOutcome, ...]:
        """All outcomes of a key, newest first. run: the run that planned the key; None for this plan."""
        if key and key not in self._judged:
            known = self._checks.get(check)
            outcomes = self._ledger.history(key=key, limit=HISTORY_LENGTH) if known else ()
            task = self._task(key, run) if outcomes else None
            positions = self._ledger.positions(key) if outcomes else {}
            self._judged[key] = tuple(
                judge_stored_outcome(known, task, outcome, positions[outcome.attempt])
                for outcome in outcomes
                if known
            )
        return self._judged.get(key, ())

    def _task(self, key: str, run: RunRecord | None) -> Task | TaskRecord | None:
        if run is None or key in self._plan.tasks:
            return self._plan.tasks.get(key)
        return self._tasks_of(run).get(key)


def _cause(change: KeyChange) -> str:
    """One line that describes how a key changed, with shortened digests."""
    return _DIGEST.sub(lambda digest: f"{digest[0][:10]}…", str(change).removeprefix("facets."))


def _machines(outcomes: Sequence[JudgedOutcome]) -> tuple[str, ...]:
    return tuple(sorted({judged.machine for judged in outcomes if judged.machine}))


def _was_on_hardware(verdict: EarlierVerdict) -> bool:
    """Whether hardware ran it, or a machine that is not believed claims that it did."""
    return verdict.evidence is Evidence.HARDWARE or verdict.status is Status.CLAIMED


def _key_difference(changes: Sequence[KeyChange]) -> KeyDifference:
    commits = dict.fromkeys(
        (change.before, change.after)
        for change in changes
        if all(isinstance(one, str) and _COMMIT.fullmatch(one) for one in (change.before, change.after))
    )
    return KeyDifference(
        changes=tuple(_cause(change) for change in changes[:MAX_CAUSES]),
        parts=tuple(dict.fromkeys(map(_changed_part, changes))),
        commits=tuple(commits),
    )


def _changed_part(change: KeyChange) -> ChangedPart:
    if not change.part.startswith("facets."):
        return ChangedPart.CODE
    return ChangedPart.PATCHES if change.part.startswith("facets.patches") else ChangedPart.MATRIX
