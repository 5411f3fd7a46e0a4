"""The verdict on one entry of a plan: how its check judges the outcome, compared with the expectation."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.check import Check
from harness.measurements import OldMeasurementsError
from harness.outcome import Evidence, Judgement, Outcome, State, Status, Tier
from harness.serialisation import json_form


class Standing(str, enum.Enum):
    """How a status compares with the expectation for the entry."""

    AS_EXPECTED = "as-expected"
    KNOWN = "known"
    UNEXPECTED = "unexpected"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a verdict, not a credential
    INCOMPLETE = "incomplete"


@json_form(leave_out=("because", "where"))
@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """An expected failure: its state, its reason, where it is tracked, and when the expectation ends.

    because: a failure with a reason that contains none of these texts is a new failure. Empty: any reason.
    """

    state: str
    because: tuple[str, ...] = ()
    reason: str
    source: str
    until: str = ""
    where: str = ""


@json_form(cell_id="cell", leave_out=("key", "outcome"))
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A check of a cell, judged and compared with its expectation.

    `evidence` is None if there is none, `outcome` if the check has not run. `state` is the status, or more
    precisely how it failed: one of `FINER_STATES`.
    """

    cell_id: str
    check: str
    status: Status
    standing: Standing
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    evidence: Evidence | None = None
    expected: ExpectedFailure | None = None
    state: str = ""
    key: str = ""
    outcome: Outcome | None = None


#  How a program in a cell ended (`harness.cell_program.program_run.ProgramFailure`) -> the state of the
# failure.
PROGRAM_FAILURE_STATES = {"hung": "timeout", "crashed": "crash"}
#: How a failure is told apart more closely; an expectation of `fail` covers drift, and neither of the others.
FAILURE_STATES = ("timeout", "crash", "numeric-drift")
#: Tiers whose question is about numbers: a wrong answer there is drift.
NUMERIC_TIERS = frozenset({Tier.NUMERICS, Tier.CONVERGENCE})
#: Statuses that say nothing went wrong with the cell, whether or not anything was proved.
NOT_FAILURES = frozenset({Status.PASS, Status.NOT_RUN, Status.UNSUPPORTED})
#: Statuses of entries that were planned and have no answer.
UNDECIDED = frozenset({Status.ERROR, Status.STALE, Status.INCONCLUSIVE})


def judge_outcome(check: Check, outcome: Outcome) -> Judgement:
    """How `check` judges an outcome; an exception in the judge is an error, never a pass."""
    if outcome.state is State.TIMEOUT:
        message = (
            outcome.failure.message
            if outcome.failure
            else f"exceeded its time limit of {check.timeout_s:g} s"
        )
        return Judgement(status=Status.FAIL, reasons=(f"timed out: {message}",))
    if outcome.state is not State.COMPLETED:
        failure = outcome.failure
        reason = f"{failure.kind}: {failure.message}" if failure else outcome.state.value
        return Judgement(
            status=Status.ERROR, reasons=(reason,), remedies=(failure.fix,) if failure and failure.fix else ()
        )
    try:
        return check.judge(check.read(outcome), check.params)
    except OldMeasurementsError as error:
        return Judgement(
            status=Status.STALE,
            reasons=(f"Another version of npu-matrix stored this outcome: {error}.",),
            remedies=("Run the check again.",),
        )
    except Exception as error:  # noqa: BLE001 - if the judge raises, the entry has no verdict
        return Judgement(
            status=Status.ERROR,
            reasons=(f"the judge of {check.name!r} cannot read these measurements: {error!r}",),
            remedies=("the outcome may have been stored by an older version: run the check again",),
        )


def failure_state(check: Check, outcome: Outcome, judgement: Judgement) -> str:
    """The status, or how it failed where the outcome says so: timeout, crash or numeric-drift."""
    status: str = judgement.status.value
    if judgement.status is not Status.FAIL:
        return status
    if outcome.state is State.TIMEOUT:
        return "timeout"
    ending = PROGRAM_FAILURE_STATES.get(str(outcome.measurements.get("state", "")))
    if ending:
        return ending
    return "numeric-drift" if check.tier in NUMERIC_TIERS else status


def judge_against_expectation(
    cell_id: str,
    check: str,
    judgement: Judgement,
    *,
    expected: ExpectedFailure | None,
    key: str = "",
    outcome: Outcome | None = None,
    blocked_by_known: bool = False,
    state: str = "",
) -> Verdict:
    """Compare a judgement with the expectation; an unexpected pass counts like a new failure."""
    found = state or judgement.status.value
    new = _unexpected_reasons(judgement, found, expected)
    return Verdict(
        cell_id=cell_id,
        check=check,
        status=judgement.status,
        standing=_standing(judgement, found, None if new else expected, blocked_by_known=blocked_by_known),
        reasons=(*judgement.reasons, *new),
        remedies=judgement.remedies,
        evidence=outcome.evidence if outcome and judgement.status.has_evidence else None,
        expected=expected,
        state=found,
        key=key,
        outcome=outcome,
    )


def _standing(
    judgement: Judgement, state: str, expected: ExpectedFailure | None, *, blocked_by_known: bool
) -> Standing:
    status = judgement.status
    if status is Status.BLOCKED:
        # The blocking entry reports the failure itself; this entry only has no outcome.
        return Standing.KNOWN if blocked_by_known else Standing.INCOMPLETE
    if expected is not None and status is not Status.NOT_RUN:
        if status is Status.PASS:
            return Standing.UNEXPECTED_PASS
        if _matches_state(state, expected.state):
            return Standing.KNOWN
    if status in UNDECIDED:
        return Standing.INCOMPLETE
    return Standing.AS_EXPECTED if status in NOT_FAILURES else Standing.UNEXPECTED


def _unexpected_reasons(
    judgement: Judgement, state: str, expected: ExpectedFailure | None
) -> tuple[str, ...]:
    """A sentence for each reason of a failure that the expectation does not cover."""
    if expected is None or not expected.because or not _matches_state(state, expected.state):
        return ()
    place = f" ({expected.where})" if expected.where else ""
    return tuple(
        f"not covered by the expected failure{place}: {reason}"
        for reason in judgement.reasons or ("the check gave no reason",)
        if not any(text in reason for text in expected.because)
    )


def _matches_state(state: str, expected: str) -> bool:
    return state == expected or (expected == Status.FAIL.value and state == "numeric-drift")
