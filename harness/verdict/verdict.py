"""The verdict on one entry of a plan: how its check judges the outcome, compared with the expectation."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from harness.check import Check
from harness.devices.sim.refusals.permissive_calls import stored_permissive_calls
from harness.measurements import OldMeasurementsError
from harness.outcome import (
    UNDECIDED,
    UNRUN,
    UNVERIFIED,
    Evidence,
    Judgement,
    Outcome,
    State,
    Status,
    Tier,
)
from harness.serialisation import json_form
from harness.verdict.known_cases import KnownCase, compare_cases

#: Parts of reasons that version 0.2.0 reworded, with their new wording: the expectations of a matrix.yaml
#: that was written for version 0.1.0 still cover their failures.
REWORDED = (
    ("satisfies everyone", "satisfies all requirements"),
    ("did not answer and was left out", "did not respond and was not searched"),
    ("required by nobody", "not required by any package"),
    (
        "nor with the torch_npu that vllm-ascend is made for",
        "the torch_npu that vllm-ascend pins does not support it either",
    ),
)


class Standing(str, enum.Enum):
    """How a judgement compares with the expectation for the entry.

    `KNOWN`: it failed as expected. `INCOMPLETE`: planned, but not decided.
    """

    AS_EXPECTED = "as-expected"
    KNOWN = "known"
    UNEXPECTED = "unexpected"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a verdict, not a credential
    INCOMPLETE = "incomplete"


@json_form(leave_out=("because", "where", "cases"))
@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """An expected failure: its state, its reason, where it is tracked, who is responsible, when it ends.

    id: its name in matrix.yaml. because: a reason that contains none of these texts makes the failure a
    new one. Empty: any reason. cases: for a check of many tests, the known failures among them; None if the
    expectation is about the check as a whole.
    """

    state: str
    because: tuple[str, ...] = ()
    reason: str
    source: str
    until: str = ""
    where: str = ""
    id: str = ""
    owner: str = ""
    cases: tuple[KnownCase, ...] | None = None


@json_form(cell_id="cell", leave_out=("key", "outcome"))
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A check of a cell, judged and compared with its expectation.

    `evidence` and `outcome` are None if the check has not run. `state` is the status, or for some failures
    "timeout", "crash" or "numeric-drift".
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


# How a program in a cell ended (`harness.cell_program.program_run.ProgramFailure`) -> the state of the
# failure.
PROGRAM_FAILURE_STATES = {"hung": "timeout", "crashed": "crash"}
#: Tiers of checks that compare numbers: their failures have the state "numeric-drift".
NUMERIC_TIERS = frozenset({Tier.NUMERICS, Tier.CONVERGENCE})
CLAIMED_REMEDY = (
    "Run it here; or name the public key of the runner in matrix.yaml, sign its outcomes there with "
    "`npu-matrix ledger sign`, and merge its ledger again."
)
#: Statuses without a failure, whether or not the check was run.
NOT_FAILURES = UNVERIFIED | {Status.PASS}


def judge_outcome(check: Check, outcome: Outcome) -> Judgement:
    """How `check` judges an outcome. An exception in the judge becomes the status `error`, never a pass.

    Hardware evidence that is not believed becomes the status `claimed`, whatever the measurements are. A pass
    on the simulated device has a reason if it is unknown whether torch_npu refuses calls that it made.
    """
    judgement = _judge_measurements(check, outcome)
    if judgement.status is Status.PASS:
        permissive = stored_permissive_calls(outcome.environment).reasons()
        judgement = replace(judgement, reasons=(*judgement.reasons, *permissive))
    if not outcome.trust.claimed:
        return judgement
    origin = outcome.origin
    host = f"the host {origin.host[:12]}" if origin else "an unknown host"
    runner = f" (runner {origin.runner})" if origin and origin.runner else ""
    reason = (
        f"Claimed by {host}{runner}: {judgement.status.value} on hardware. Not believed, because "
        f"{outcome.trust.claimed}."
    )
    return Judgement(status=Status.CLAIMED, reasons=(reason,), remedies=(CLAIMED_REMEDY,))


def _judge_measurements(check: Check, outcome: Outcome) -> Judgement:
    failure = outcome.failure
    if outcome.state is State.TIMEOUT:
        message = failure.message if failure else f"exceeded its time limit of {check.timeout_s:g} s"
        return Judgement(status=Status.FAIL, reasons=(f"timed out: {message}",))
    if outcome.state is not State.COMPLETED:
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
    """The status as text, or for some failures how the check failed: timeout, crash or numeric-drift.

    An expectation with the state `fail` covers numeric-drift, but neither timeout nor crash.
    """
    if judgement.status is Status.FAIL:
        if outcome.state is State.TIMEOUT:
            return "timeout"
        program_failure = PROGRAM_FAILURE_STATES.get(str(outcome.measurements.get("state", "")))
        if program_failure:
            return program_failure
        if check.tier in NUMERIC_TIERS:
            return "numeric-drift"
    return str(judgement.status.value)


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
    """Compare a judgement with the expectation. An unexpected pass is as bad as a new failure.

    blocked_by_known: whether the failure that blocks this entry is expected.
    """
    if expected is not None and expected.cases is not None and judgement.cases:
        return _judge_cases(cell_id, check, judgement, expected, expected.cases, key=key, outcome=outcome)
    found = state or judgement.status.value
    new = _unexpected_reasons(judgement, found, expected)
    # An expected error is one that a run recorded; no expectation replaces the run.
    never_ran = judgement.status in UNDECIDED and outcome is None
    return Verdict(
        cell_id=cell_id,
        check=check,
        status=judgement.status,
        standing=_standing(
            judgement, found, None if new or never_ran else expected, blocked_by_known=blocked_by_known
        ),
        reasons=(*judgement.reasons, *new),
        remedies=judgement.remedies,
        evidence=outcome.evidence if outcome and judgement.status.has_evidence else None,
        expected=expected,
        state=found,
        key=key,
        outcome=outcome,
    )


def _judge_cases(
    cell_id: str,
    check: str,
    judgement: Judgement,
    expected: ExpectedFailure,
    known: tuple[KnownCase, ...],
    *,
    key: str,
    outcome: Outcome | None,
) -> Verdict:
    """Compare each failure with the known ones. A known failure that passes is as bad as a new failure."""
    compared = compare_cases(judgement.cases, known)
    if compared.new or compared.refused:
        standing = Standing.UNEXPECTED
    elif compared.repaired:
        standing = Standing.UNEXPECTED_PASS
    elif judgement.status is Status.FAIL:
        standing = Standing.KNOWN
    else:
        standing = _standing(judgement, judgement.status.value, None, blocked_by_known=False)
    return Verdict(
        cell_id=cell_id,
        check=check,
        status=judgement.status,
        standing=standing,
        reasons=(*compared.sentences(), *judgement.reasons),
        remedies=judgement.remedies,
        evidence=outcome.evidence if outcome and judgement.status.has_evidence else None,
        expected=expected if standing is not Standing.AS_EXPECTED else None,
        state=judgement.status.value,
        key=key,
        outcome=outcome,
    )


def standing_of(judgement: Judgement, state: str, expected: ExpectedFailure | None) -> Standing:
    """The standing of the judgement on a stored outcome."""
    new = _unexpected_reasons(judgement, state, expected)
    return _standing(judgement, state, None if new else expected, blocked_by_known=False)


def _standing(
    judgement: Judgement, state: str, expected: ExpectedFailure | None, *, blocked_by_known: bool
) -> Standing:
    status = judgement.status
    if status is Status.BLOCKED:
        # The blocking entry reports the failure itself; this entry only has no outcome.
        return Standing.KNOWN if blocked_by_known else Standing.INCOMPLETE
    if expected is not None and status not in UNRUN:
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
        if not any(_reworded(text) in _reworded(reason) for text in expected.because)
    )


def _reworded(text: str) -> str:
    """The text in the wording of today: both an expectation and a stored outcome may have an earlier one."""
    for earlier, today in REWORDED:
        text = text.replace(earlier, today)
    return text


def _matches_state(state: str, expected: str) -> bool:
    return state == expected or (expected == Status.FAIL.value and state == "numeric-drift")
