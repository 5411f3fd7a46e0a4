"""The verdicts of earlier runs on the cells and checks of a plan, also if their inputs were different.

A key changes with every input, so a history belongs to a check of a cell and not to a key. The plan that an
earlier run stored has the key of that time; the outcome of this key is judged by the current check.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

from harness.check import Check
from harness.ledger.plan_record import PlanEntry, TaskRecord
from harness.ledger.run_record import RunRecord
from harness.ledger.store import Ledger
from harness.outcome import Outcome, State, Status
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.plan.tasks.task import Plan, Task
from harness.report.model.report_inputs import ComparisonRun, RememberedRun
from harness.report.model.streak import EarlierVerdict, HistoryEntry
from harness.report.model.trend import figures_of
from harness.verdict.verdict import judge_outcome

HISTORY_LENGTH = 50
#: How many runs are searched for the predecessors of a run that is not among the last ones.
FURTHER_BACK = 500
MAX_CAUSES = 12
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _JudgedOutcome(HistoryEntry):
    """A stored outcome as the current check judges it; `time` is when the task ended.

    position: its place in the order in which the ledger was written.
    """

    completed: bool
    position: int


class EarlierRuns:
    """The runs before a given run. Each key is read and judged once, however many runs and cells share it."""

    def __init__(self, plan: Plan, ledger: Ledger, run_id: str) -> None:
        self._plan = plan
        self._ledger = ledger
        self._checks: dict[str, Check] = {task.check.name: task.check for task in plan.tasks.values()}
        self._judged: dict[str, tuple[_JudgedOutcome, ...]] = {}
        self._tasks: dict[str, Mapping[str, TaskRecord]] = {}
        self._runs = _runs_before(ledger, run_id)
        self._ends = ledger.run_ends()
        # Without a limit if the run is not in the ledger.
        self._end = self._ends.get(run_id, sys.maxsize)
        self._entries = [run.plan.entries_by_name for run in self._runs]
        self._without_outcome = [_dispositions(ledger, run) for run in self._runs]

    @property
    def runs(self) -> tuple[RememberedRun, ...]:
        """The runs before this one, newest first."""
        return tuple(
            RememberedRun(run_id=run.run_id, started=run.started, revision=revision_of(run))
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

    def history(self, entry: PlanEntry) -> tuple[HistoryEntry, ...]:
        """The verdicts of earlier runs on one check of one cell, oldest first, at most `HISTORY_LENGTH`.

        The order is that in which the ledger was written: clocks can be set back.
        """
        pair = (entry.cell_id, entry.check)
        found: list[tuple[int, HistoryEntry]] = [
            (self._ends[run.run_id], self._entry_of(run, entries[pair], without_outcome.get(pair)))
            for run, entries, without_outcome in zip(
                self._runs[::-1], self._entries[::-1], self._without_outcome[::-1], strict=True
            )
            if pair in entries
        ]
        found += [
            (judged.position, judged)
            for judged in self._outcomes(entry.key, entry.check, None)
            if judged.run_id not in self._ends and judged.position <= self._end
        ]
        # Runs with the same end recorded nothing in between, and keep their order.
        return tuple(past for _position, past in sorted(found, key=itemgetter(0))[-HISTORY_LENGTH:])

    def earlier(self, run_id: str) -> ComparisonRun | None:
        """An earlier run to compare with: the verdicts on its whole plan, and which inputs differ."""
        run = next((run for run in self._runs if run.run_id == run_id), None) or self._ledger.run(run_id)
        if run is None:
            return None
        without_outcome = _dispositions(self._ledger, run)
        entries = run.plan.entries_by_name
        verdicts = {
            pair: self._entry_of(run, entry, without_outcome.get(pair)).verdict
            for pair, entry in entries.items()
        }
        return ComparisonRun(
            run_id=run.run_id,
            started=run.started,
            revision=revision_of(run),
            verdicts=verdicts,
            causes=self._causes(run, entries),
        )

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
        self, run: RunRecord, entry: PlanEntry, without_outcome: EarlierVerdict | None
    ) -> HistoryEntry:
        verdict, judged = self._verdict(run, entry, without_outcome)
        return HistoryEntry(
            time=run.started,
            run_id=run.run_id,
            verdict=verdict,
            reused=judged is not None and judged.run_id != run.run_id,
            figures=judged.figures if judged else (),
        )

    def _verdict(
        self, run: RunRecord, entry: PlanEntry, without_outcome: EarlierVerdict | None
    ) -> tuple[EarlierVerdict, _JudgedOutcome | None]:
        """The verdict of `run` on an entry of its plan, and the outcome that the verdict is based on.

        without_outcome: the verdict that the run recorded for an entry that it did not execute.
        """
        if entry.skip:
            return EarlierVerdict(status=entry.skip.status, reason=entry.skip.reason), None
        outcomes = self._outcomes(entry.key, entry.check, run)
        own = next((judged for judged in outcomes if judged.run_id == run.run_id), None)
        if own is not None:
            return own.verdict, own
        if without_outcome is not None:
            return without_outcome, None
        if self._ledger.lost.outcome_of_run(run.run_id, entry.key):
            reason = "the outcome of this run was lost when the ledger was damaged"
            return EarlierVerdict(status=Status.NOT_RUN, reason=reason, key=entry.key), None
        end = self._ends[run.run_id]
        reused = next((judged for judged in outcomes if judged.completed and judged.position <= end), None)
        if reused is not None:
            return reused.verdict, reused
        reason = "this run has no outcome that can still be read"
        return EarlierVerdict(status=Status.NOT_RUN, reason=reason, key=entry.key), None

    def _outcomes(self, key: str, check: str, run: RunRecord | None) -> tuple[_JudgedOutcome, ...]:
        """All outcomes of a key, newest first. run: the run that planned the key; None for this plan."""
        if key and key not in self._judged:
            known = self._checks.get(check)
            outcomes = self._ledger.history(key=key, limit=HISTORY_LENGTH) if known else ()
            task = self._task(key, run) if outcomes else None
            positions = self._ledger.positions(key) if outcomes else {}
            self._judged[key] = tuple(
                _judge(known, task, outcome, positions[outcome.attempt]) for outcome in outcomes if known
            )
        return self._judged.get(key, ())

    def _task(self, key: str, run: RunRecord | None) -> Task | TaskRecord | None:
        if run is None or key in self._plan.tasks:
            return self._plan.tasks.get(key)
        if run.run_id not in self._tasks:
            self._tasks[run.run_id] = run.plan.tasks_by_key
        return self._tasks[run.run_id].get(key)


def _cause(change: KeyChange) -> str:
    """One line that describes how a key changed, with shortened digests."""
    return _DIGEST.sub(lambda digest: f"{digest[0][:10]}…", str(change).removeprefix("facets."))


def _judge(check: Check, task: Task | TaskRecord | None, stored: Outcome, position: int) -> _JudgedOutcome:
    outcome = bounded_outcome(task, stored).outcome
    judgement = judge_outcome(check, outcome)
    return _JudgedOutcome(
        run_id=outcome.run_id,
        time=outcome.finished,
        completed=outcome.state is State.COMPLETED,
        position=position,
        figures=figures_of(outcome.check, outcome.measurements),
        verdict=EarlierVerdict(
            status=judgement.status,
            reason=judgement.reasons[0] if judgement.reasons else "",
            evidence=outcome.evidence,
            key=outcome.key,
        ),
    )


def revision_of(run: RunRecord) -> str:
    """The commit of the checkout of a run, with a `+` if files differed from it; "" if not recorded."""
    return str(run.host.get("revision", ""))


def _runs_before(ledger: Ledger, run_id: str) -> tuple[RunRecord, ...]:
    """The runs before `run_id`, newest first; if there is no such run, the last runs."""
    runs = ledger.runs(HISTORY_LENGTH + 1)
    indices = {run.run_id: index for index, run in enumerate(runs)}
    if run_id not in indices and (this := ledger.run(run_id)) is not None:
        order = {name: index for index, name in enumerate(ledger.run_ends())}
        further = ledger.runs(FURTHER_BACK)
        return tuple(run for run in further if order[run.run_id] < order[this.run_id])[:HISTORY_LENGTH]
    return runs[indices.get(run_id, -1) + 1 :][:HISTORY_LENGTH]


def _dispositions(ledger: Ledger, run: RunRecord) -> dict[Pair, EarlierVerdict]:
    return {
        (unrun.cell_id, unrun.check): EarlierVerdict(status=unrun.status, reason=unrun.reason, key=unrun.key)
        for unrun in ledger.dispositions(run.run_id)
    }
