"""The verdict on every entry of a plan, and the exit code of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.ledger.plan_record import PlanEntry
from harness.ledger.run_record import Disposition
from harness.outcome import Judgement, Outcome, Status
from harness.plan.tasks.task import Plan
from harness.verdict.verdict import (
    UNDECIDED,
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
    """One verdict per entry, in plan order; an entry without an outcome or a reason is an error."""
    without_outcome = {(left.cell_id, left.check): left for left in dispositions}
    judgements = {
        key: (judge_outcome(plan.tasks[key].check, outcome), outcome)
        for key, outcome in outcomes.items()
        if key in plan.tasks
    }
    verdicts: list[Verdict] = []
    failures: dict[str, list[Verdict]] = {}
    for entry in plan.entries:
        judgement, outcome = _judgement(entry, judgements, without_outcome)
        earlier_failures = failures.setdefault(entry.cell_id, [])
        verdict = judge_against_expectation(
            entry.cell_id,
            entry.check,
            judgement,
            key=entry.key,
            outcome=outcome,
            state=failure_state(plan.tasks[entry.key].check, outcome, judgement) if outcome else "",
            # An entry that was never run cannot be an expected failure.
            expected=expected(entry.cell_id, entry.check) if _was_decided(judgement, outcome) else None,
            blocked_by_known=bool(earlier_failures)
            and all(failure.standing is Standing.KNOWN for failure in earlier_failures),
        )
        if verdict.status not in {Status.PASS, Status.NOT_RUN, Status.BLOCKED}:
            earlier_failures.append(verdict)
        verdicts.append(verdict)
    return tuple(verdicts)


def _was_decided(judgement: Judgement, outcome: Outcome | None) -> bool:
    return outcome is not None or judgement.status not in UNDECIDED


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
            reasons=("the check was planned, but it has no outcome",),
            remedies=("run the same command again; it resumes the run",),
        ),
        None,
    )


NOT_CHECKED = frozenset({Status.NOT_RUN, Status.UNSUPPORTED})


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Counts by status and by standing, the exit code of the run, and the reasons for it."""

    by_status: dict[str, int]
    by_standing: dict[str, int]
    exit_code: int
    reasons: tuple[str, ...]


def summarise_verdicts(verdicts: Iterable[Verdict]) -> RunSummary:
    """The worst standing decides: unexpected, then incomplete, then as expected; no verdicts is code 3."""
    found = list(verdicts)
    standings = Counter(verdict.standing for verdict in found)
    reasons: list[str] = []
    if not found:
        return RunSummary(
            by_status={}, by_standing={}, exit_code=EXIT_NOTHING_SELECTED, reasons=("nothing was selected",)
        )
    if not standings.keys() - {Standing.AS_EXPECTED} and all(one.status in NOT_CHECKED for one in found):
        return RunSummary(
            by_status=dict(Counter(verdict.status.value for verdict in found)),
            by_standing={standing.value: count for standing, count in standings.items()},
            exit_code=EXIT_NOTHING_SELECTED,
            reasons=("no selected check could run on this host, so nothing was proved",),
        )
    code = EXIT_OK
    if standings[Standing.INCOMPLETE]:
        code = EXIT_INCOMPLETE
        reasons.append(f"{standings[Standing.INCOMPLETE]} planned without an answer")
    unexpected = standings[Standing.UNEXPECTED] + standings[Standing.UNEXPECTED_PASS]
    if unexpected:
        code = EXIT_UNEXPECTED
        reasons.insert(0, f"{unexpected} not as expected")
    return RunSummary(
        by_status=dict(Counter(verdict.status.value for verdict in found)),
        by_standing={standing.value: count for standing, count in standings.items()},
        exit_code=code,
        reasons=tuple(reasons) or ("everything planned came out as expected",),
    )
