"""Joins a plan with outcomes on their keys and says what is to be said of every entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.ledger.plan_record import PlanEntry
from harness.ledger.run_record import Disposition
from harness.outcome import Judgement, Outcome, Status
from harness.plan.tasks.task import Plan
from harness.verdict.verdict import (
    WITHOUT_ANSWER,
    ExpectedFailure,
    Standing,
    Verdict,
    failure_state,
    judge_against_expectation,
    judge_outcome,
)


def judge_plan(
    plan: Plan,
    outcomes: Mapping[str, Outcome],
    dispositions: Iterable[Disposition],
    expected: Callable[[str, str], ExpectedFailure | None],
) -> tuple[Verdict, ...]:
    """One verdict per entry, in plan order; what nothing accounts for is an error: planned = reported."""
    without_outcome = {(left.cell_id, left.check): left for left in dispositions}
    judgements = {
        key: (judge_outcome(plan.tasks[key].check, outcome), outcome)
        for key, outcome in outcomes.items()
        if key in plan.tasks
    }
    verdicts: list[Verdict] = []
    reds: dict[str, list[Verdict]] = {}
    for entry in plan.entries:
        judgement, outcome = _judgement(entry, judgements, without_outcome)
        behind = reds.setdefault(entry.cell_id, [])
        verdict = judge_against_expectation(
            entry.cell_id,
            entry.check,
            judgement,
            key=entry.key,
            outcome=outcome,
            state=failure_state(plan.tasks[entry.key].check, outcome, judgement) if outcome else "",
            # What nobody ran is no error that somebody could have expected: planned = reported.
            expected=expected(entry.cell_id, entry.check) if _was_answered(judgement, outcome) else None,
            blocked_by_known=bool(behind) and all(red.standing is Standing.KNOWN for red in behind),
        )
        if verdict.status not in {Status.PASS, Status.NOT_RUN, Status.BLOCKED}:
            behind.append(verdict)
        verdicts.append(verdict)
    return tuple(verdicts)


def _was_answered(judgement: Judgement, outcome: Outcome | None) -> bool:
    return outcome is not None or judgement.status not in WITHOUT_ANSWER


def _judgement(
    entry: PlanEntry,
    judgements: Mapping[str, tuple[Judgement, Outcome]],
    dispositions: Mapping[tuple[str, str], Disposition],
) -> tuple[Judgement, Outcome | None]:
    if entry.skip is not None:
        return Judgement(status=entry.skip.status, reasons=(entry.skip.reason,)), None
    if entry.key in judgements:
        return judgements[entry.key]
    disposition = dispositions.get((entry.cell_id, entry.check))
    if disposition is not None:
        return Judgement(status=disposition.status, reasons=(disposition.reason,)), None
    return (
        Judgement(
            status=Status.ERROR,
            reasons=("planned, but there is no outcome",),
            remedies=("run the same command again: it resumes",),
        ),
        None,
    )
