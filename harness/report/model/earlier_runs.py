"""The verdicts of earlier runs on the cells and checks of a plan, also where their inputs were different.

A key changes with every input, so a history belongs to a (cell, check). Its key in an earlier run is in that
run's plan; the outcome of that key is judged again by the current version of the check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.check import Check
from harness.ledger.plan_record import PlanEntry
from harness.ledger.run_record import RunRecord
from harness.ledger.store import Ledger
from harness.outcome import Outcome, State, Status
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan
from harness.report.model.report_inputs import EarlierInput, EarlierVerdict, HistoryEntry, RunInput
from harness.report.model.trend import figures_of
from harness.verdict.verdict import judge_outcome

HISTORY_LENGTH = 50
#: Runs looked through for those before a run that is not among the last ones.
FURTHER_BACK = 500
MAX_CAUSES = 12
_DIGEST = re.compile(r"\b[0-9a-f]{32,64}\b")

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """An outcome as the current check judges it, with the numbers that are followed over runs."""

    run_id: str
    finished: float
    completed: bool
    verdict: EarlierVerdict
    figures: tuple[tuple[str, float], ...] = ()


class EarlierRuns:
    """The runs before one run. Each key is read and judged once, however many runs and cells share it."""

    def __init__(self, plan: Plan, ledger: Ledger, run_id: str) -> None:
        self._plan = plan
        self._ledger = ledger
        self._checks: dict[str, Check] = {task.check.name: task.check for task in plan.tasks.values()}
        self._judged: dict[str, tuple[_Judged, ...]] = {}
        self._runs = _runs_before(ledger, run_id)
        self._known = {run.run_id for run in self._runs} | {run_id}
        self._entries = [run.plan.entries_by_name for run in self._runs]
        self._left = [_dispositions(ledger, run) for run in self._runs]

    @property
    def runs(self) -> tuple[RunInput, ...]:
        """The runs before this one, newest first."""
        return tuple(
            RunInput(run_id=run.run_id, started=run.started, revision=revision_of(run)) for run in self._runs
        )

    @property
    def previous(self) -> str | None:
        """The last earlier run that planned at least half of this plan, or None."""
        wanted = {(entry.cell_id, entry.check) for entry in self._plan.entries}
        for run, entries in zip(self._runs, self._entries, strict=True):
            if 2 * len(wanted & entries.keys()) >= len(wanted) > 0:
                return run.run_id
        return None

    def history(self, entry: PlanEntry) -> tuple[HistoryEntry, ...]:
        """The verdicts of earlier runs on one (cell, check), oldest first, at most `HISTORY_LENGTH`."""
        pair = (entry.cell_id, entry.check)
        found = [
            self._entry_of(run, entries[pair], left.get(pair))
            for run, entries, left in zip(self._runs, self._entries, self._left, strict=True)
            if pair in entries
        ]
        found += [
            _history(judged.finished, judged.run_id, judged.verdict, judged.figures)
            for judged in self._outcomes(entry.key, entry.check)
            if judged.run_id not in self._known
        ]
        return tuple(sorted(found, key=lambda past: past.time)[-HISTORY_LENGTH:])

    def earlier(self, run_id: str) -> EarlierInput | None:
        """An earlier run to compare with: its verdicts on its whole plan, and which inputs differ."""
        run = next((run for run in self._runs if run.run_id == run_id), None) or self._ledger.run(run_id)
        if run is None:
            return None
        left = _dispositions(self._ledger, run)
        entries = run.plan.entries_by_name
        verdicts = {pair: self._verdict(run, entry, left.get(pair))[0] for pair, entry in entries.items()}
        return EarlierInput(
            run_id=run.run_id,
            started=run.started,
            revision=revision_of(run),
            verdicts=verdicts,
            causes=self._causes(run, entries),
        )

    def _causes(self, run: RunRecord, entries: Mapping[Pair, PlanEntry]) -> dict[Pair, tuple[str, ...]]:
        before, after = run.plan.tasks_by_key, self._plan.tasks
        explained: dict[tuple[str, str], tuple[str, ...]] = {}
        causes: dict[Pair, tuple[str, ...]] = {}
        for entry in self._plan.entries:
            old = entries.get((entry.cell_id, entry.check))
            if old is None or old.key == entry.key or old.key not in before or entry.key not in after:
                continue
            both = (old.key, entry.key)
            if both not in explained:
                changes = key_changes(
                    before[old.key], after[entry.key].record(), run.plan.code, self._plan.code
                )
                explained[both] = tuple(_cause(change) for change in changes[:MAX_CAUSES])
            causes[entry.cell_id, entry.check] = explained[both]
        return causes

    def _entry_of(self, run: RunRecord, entry: PlanEntry, left: EarlierVerdict | None) -> HistoryEntry:
        verdict, reused = self._verdict(run, entry, left)
        figures = reused.figures if reused else self._own_figures(run, entry)
        return _history(run.started, run.run_id, verdict, figures, reused=reused is not None)

    def _own_figures(self, run: RunRecord, entry: PlanEntry) -> tuple[tuple[str, float], ...]:
        outcomes = self._outcomes(entry.key, entry.check)
        return next((judged.figures for judged in outcomes if judged.run_id == run.run_id), ())

    def _verdict(
        self, run: RunRecord, entry: PlanEntry, left: EarlierVerdict | None
    ) -> tuple[EarlierVerdict, _Judged | None]:
        """The verdict of `run` on an entry of its plan, and the older outcome if the run reused one."""
        if entry.skip:
            return EarlierVerdict(status=entry.skip.status, reason=entry.skip.reason), None
        outcomes = self._outcomes(entry.key, entry.check)
        own = next((judged for judged in outcomes if judged.run_id == run.run_id), None)
        if own is not None:
            return own.verdict, None
        if left is not None:
            return left, None
        end = run.started if run.finished is None else run.finished
        reused = next((judged for judged in outcomes if judged.completed and judged.finished <= end), None)
        if reused is not None:
            return reused.verdict, reused
        reason = "this run left no outcome that could still be read"
        return EarlierVerdict(status=Status.NOT_RUN, reason=reason, key=entry.key), None

    def _outcomes(self, key: str, check: str) -> tuple[_Judged, ...]:
        """All outcomes of a key, newest first."""
        if key and key not in self._judged:
            known = self._checks.get(check)
            outcomes = self._ledger.history(key=key, limit=HISTORY_LENGTH) if known else ()
            self._judged[key] = tuple(_judge(known, outcome) for outcome in outcomes if known)
        return self._judged.get(key, ())


def _cause(change: KeyChange) -> str:
    """A change of a key in a line, with digests shortened."""
    return _DIGEST.sub(lambda digest: f"{digest[0][:10]}…", str(change).removeprefix("facets."))


def _judge(check: Check, outcome: Outcome) -> _Judged:
    judgement = judge_outcome(check, outcome)
    return _Judged(
        run_id=outcome.run_id,
        finished=outcome.finished,
        completed=outcome.state is State.COMPLETED,
        figures=figures_of(outcome.check, outcome.measurements),
        verdict=EarlierVerdict(
            status=judgement.status,
            reason=judgement.reasons[0] if judgement.reasons else "",
            evidence=outcome.evidence,
            key=outcome.key,
        ),
    )


def _history(
    time: float,
    run_id: str,
    verdict: EarlierVerdict,
    figures: tuple[tuple[str, float], ...],
    *,
    reused: bool = False,
) -> HistoryEntry:
    return HistoryEntry(
        time=time,
        status=verdict.status,
        run_id=run_id,
        evidence=verdict.evidence,
        key=verdict.key,
        reused=reused,
        figures=figures,
    )


def revision_of(run: RunRecord) -> str:
    """The commit of the checkout a run was made in, with a `+` where files differed; "" when not recorded."""
    return str(run.host.get("revision", ""))


def _runs_before(ledger: Ledger, run_id: str) -> tuple[RunRecord, ...]:
    """The runs before `run_id`, newest first; the last ones when there is no such run."""
    runs = ledger.runs(HISTORY_LENGTH + 1)
    places = {run.run_id: place for place, run in enumerate(runs)}
    if run_id not in places and (this := ledger.run(run_id)) is not None:
        runs = tuple(run for run in ledger.runs(FURTHER_BACK) if run.started < this.started)
        return runs[:HISTORY_LENGTH]
    return runs[places.get(run_id, -1) + 1 :][:HISTORY_LENGTH]


def _dispositions(ledger: Ledger, run: RunRecord) -> dict[Pair, EarlierVerdict]:
    return {
        (left.cell_id, left.check): EarlierVerdict(status=left.status, reason=left.reason, key=left.key)
        for left in ledger.dispositions(run.run_id)
    }
