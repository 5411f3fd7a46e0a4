"""Verdicts on a plan: an entry that was not run is incomplete, even if a failure of it is expected."""

from make_outcome import make_outcome

from harness.check import Check
from harness.ledger.plan_record import PlanEntry, Skip
from harness.ledger.run_record import Disposition
from harness.outcome import Evidence, Failure, Judgement, Measured, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import ExpectedFailure, Standing


def measure(_context):
    return Measured(measurements={}, evidence=Evidence.STATIC)


def judge(_measurements, _params):
    return Judgement(status=Status.PASS)


CHECK = Check(
    name="probe",
    tier=Tier.STATIC,
    question="?",
    facets=(),
    run=measure,
    judge=judge,
)
TASK = Task(key="k", check=CHECK, facets={}, facet_digests={}, code_digest="c", needs=(), expected_s=1.0)


def known(state):
    return lambda _cell, _check: ExpectedFailure(state=state, reason="the index is often away", source="x")


def judged(outcomes, expected, *, disposition=None, skip=None):
    entry = PlanEntry(
        cell_id="cell", check="probe", tier=Tier.STATIC, question="?", key="" if skip else "k", skip=skip
    )
    made = Plan(profile="p", matrix_digest="m", cells=(), entries=(entry,), tasks={} if skip else {"k": TASK})
    left = [disposition] if disposition else []
    (verdict,) = judge_plan(made, outcomes, left, expected)
    return verdict


def test_an_expected_error_excuses_an_error_and_not_what_nobody_ran():
    failure = Failure(kind="InfrastructureError", message="no network")
    error = make_outcome(state=State.ERROR, failure=failure)
    assert judged({"k": error}, known("error")).standing is Standing.KNOWN
    stopped = Disposition(
        cell_id="cell", check="probe", key="k", status=Status.ERROR, reason="the run was stopped before this"
    )
    for disposition in (None, stopped):
        left = judged({}, known("error"), disposition=disposition)
        assert (left.status, left.standing) == (Status.ERROR, Standing.INCOMPLETE)


def test_what_is_unsupported_can_be_expected_without_an_outcome():
    skip = Skip(status=Status.UNSUPPORTED, reason="no such operator")
    assert judged({}, known("unsupported"), skip=skip).standing is Standing.KNOWN


def test_evidence_that_was_edited_in_the_ledger_is_bounded_by_the_check_and_the_verdict_says_so():
    edited = make_outcome(evidence=Evidence.HARDWARE)
    verdict = judged({"k": edited}, lambda _cell, _check: None)
    assert verdict.evidence is Evidence.STATIC
    assert verdict.outcome is not None
    assert verdict.outcome.evidence is Evidence.STATIC
    assert "states hardware evidence" in verdict.reasons[-1]
