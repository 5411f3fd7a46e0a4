"""Stored outcomes of earlier runs, judged by the checks of today and by the expectations of their time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.check import Check
from harness.ledger.plan_record import PlanEntry, PlannedExpectation, TaskRecord
from harness.ledger.run_record import RunRecord
from harness.outcome import Judgement, Outcome, State, Status, Trust
from harness.plan.tasks.evidence_bound import bounded_outcome
from harness.plan.tasks.task import Task
from harness.report.model.streak import MAY_BE_EXPECTED, EarlierVerdict, HistoryEntry
from harness.report.model.trend import figures_of
from harness.verdict.verdict import ExpectedFailure, Standing, failure_state, judge_outcome, standing_of

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class JudgedOutcome(HistoryEntry):
    """A stored outcome as the current check judges it; `time` is when the task ended.

    position: its place in the order in which the ledger was written. judgement, state: what an expectation is
    compared with.
    """

    completed: bool
    position: int
    judgement: Judgement
    state: str
    trust: Trust


def judge_stored_outcome(
    check: Check, task: Task | TaskRecord | None, stored: Outcome, position: int
) -> JudgedOutcome:
    """The judgement of the check of today. position: of the outcome in the order of the ledger."""
    outcome = bounded_outcome(task, stored).outcome
    judgement = judge_outcome(check, outcome)
    return JudgedOutcome(
        run_id=outcome.run_id,
        time=outcome.finished,
        completed=outcome.state is State.COMPLETED,
        position=position,
        judgement=judgement,
        state=failure_state(check, outcome, judgement),
        machine=measured_on(outcome),
        measured=outcome.started,
        trust=outcome.trust,
        figures=figures_of(outcome.check, outcome.measurements),
        verdict=EarlierVerdict(
            status=judgement.status,
            reason=judgement.reasons[0] if judgement.reasons else "",
            evidence=outcome.evidence,
            key=outcome.key,
        ),
    )


def expected_failures(run: RunRecord) -> dict[Pair, ExpectedFailure] | None:
    """(cell, check) -> the expectation at the time of a run; None if the run did not store them."""
    if run.plan.expected is None:
        return None
    today = dt.datetime.fromtimestamp(run.started, tz=dt.UTC).date()
    return {
        (cell, one.check): ExpectedFailure(
            id=one.id,
            state=one.state,
            because=one.because,
            reason=one.reason,
            source=one.source,
            owner=one.owner,
            until=one.until,
        )
        for one in run.plan.expected
        if not _had_expired(one, today)
        for cell in one.cells
    }


def _had_expired(expectation: PlannedExpectation, today: dt.date) -> bool:
    try:
        return today > dt.date.fromisoformat(expectation.until)
    except ValueError:
        return False  # it ends with a version


def covers(expected: ExpectedFailure | None, judged: JudgedOutcome) -> bool:
    """Whether the expectation covers the failure of a stored outcome."""
    if expected is None or judged.verdict.status not in MAY_BE_EXPECTED:
        return False
    return standing_of(judged.judgement, judged.state, expected) is Standing.KNOWN


def verdict_then(
    judged: JudgedOutcome, entry: PlanEntry, expected: Mapping[Pair, ExpectedFailure] | None
) -> EarlierVerdict:
    """The verdict on a stored outcome, with its standing by the expectations of its run."""
    if expected is None:
        return judged.verdict
    found = expected.get((entry.cell_id, entry.check))
    if found is None and judged.verdict.status is Status.PASS:
        return judged.verdict
    return replace(judged.verdict, standing=standing_of(judged.judgement, judged.state, found))


def measured_on(outcome: Outcome | None) -> str:
    """Where an outcome was measured: the name of the runner, else the beginning of the host's fingerprint."""
    origin = outcome.origin if outcome else None
    return (origin.runner or origin.host[:12]) if origin else ""
