"""Verdicts on a plan: an entry that was not run is incomplete, even if a failure of it is expected."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from make_outcome import make_outcome

from harness.check import Check
from harness.ledger.plan_record import PlanEntry, Skip
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import ArtifactRef, Evidence, Failure, Judgement, Measured, State, Status, Tier, Trust
from harness.plan.tasks.task import Plan, Task
from harness.verdict.gate.flake import Stability
from harness.verdict.ledger_outcomes import (
    RecordedAttempts,
    flake_decisions,
    outdated_attempts,
    read_attempts,
    verdicts_from_ledger,
)
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


def entry_and_task(name, status, *, tier=Tier.STATIC, needs=(), stops=False):
    check = replace(
        CHECK,
        name=name,
        tier=tier,
        judge=lambda _measurements, _params: Judgement(status=status),
        needs=needs,
        stops=stops,
    )
    entry = PlanEntry(cell_id="cell", check=name, tier=tier, question="?", key=name)
    return entry, replace(TASK, key=name, check=check, needs=needs)


@pytest.mark.parametrize(
    ("environment", "standing"),
    [
        (Status.FAIL, Standing.KNOWN),
        (Status.INCONCLUSIVE, Standing.KNOWN),
        (Status.NOT_RUN, Standing.INCOMPLETE),
        (Status.UNSUPPORTED, Standing.INCOMPLETE),
    ],
)
def test_only_an_expected_failure_that_blocks_a_check_excuses_it(environment, standing):
    """Not an expected failure of another check of the cell, on which the blocked check does not depend."""
    made = [
        entry_and_task("api", Status.FAIL),
        entry_and_task("environment", environment, tier=Tier.BUILD),
        entry_and_task("probe", Status.PASS, tier=Tier.NUMERICS, needs=("environment",)),
    ]
    plan = Plan(
        profile="p",
        matrix_digest="m",
        cells=(),
        entries=tuple(entry for entry, _task in made),
        tasks={task.key: task for _entry, task in made},
    )
    outcomes = {name: make_outcome(name, name) for name in ("api", "environment")}
    expected = {"api": "fail", **({"environment": environment.value} if standing is Standing.KNOWN else {})}

    def known_failure(_cell, check):
        state = expected.get(check)
        return state and ExpectedFailure(state=state, reason="a known defect", source="x")

    verdict = verdicts_from_ledger(plan, outcomes, known_failure)["cell", "probe"]
    assert (verdict.status, verdict.standing) == (Status.BLOCKED, standing)


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


def test_a_pass_of_another_machine_proves_nothing_against_failures_of_this_one(tmp_path):
    entry, task = entry_and_task("probe", Status.PASS)
    check = replace(task.check, judge=lambda measured, _params: Judgement(status=Status(measured["status"])))
    plan = Plan(
        profile="p",
        matrix_digest="m",
        cells=(),
        entries=(entry,),
        tasks={"probe": replace(task, check=check)},
    )
    with Ledger.open(tmp_path / "far", host="f" * 64) as far, Ledger.open(tmp_path / "here") as here:
        for number, status in enumerate(("fail", "fail", "pass", "pass", "pass")):
            ledger = here if status == "fail" else far
            ledger.record(make_outcome("probe", measurements={"status": status}, started=number))
        here.merge(far.path)
        recorded = read_attempts(plan, here)
        assert len(recorded.attempts["probe"]) == 5
        decision = flake_decisions(plan, recorded, here, now=9.0)["cell", "probe"]
    assert decision.stability is Stability.FAILS


def outdated(made_from, attempts, *, foreign=False):
    """Why the outcome of a task proves nothing, that was made from `made_from`; `attempts` on its need, newest first."""
    resolve = replace(TASK, key="r", check=replace(CHECK, name="resolve"))
    task = replace(TASK, needs=("r",))
    plan = Plan(profile="p", matrix_digest="m", cells=(), entries=(), tasks={"k": task, "r": resolve})
    outcome = make_outcome(
        "k", "probe", inputs={"resolve": made_from.content_digest}, trust=Trust(foreign=foreign)
    )
    recorded = RecordedAttempts(
        outcomes={"k": outcome, "r": attempts[0]}, attempts={"k": (outcome,), "r": tuple(attempts)}
    )
    return outdated_attempts(plan, recorded).get("k", "")


def a_lock(text, *, foreign=False):
    ref = ArtifactRef(name="lock.txt", digest=text * 64, size=1)
    return make_outcome("r", "resolve", artifacts=(ref,), trust=Trust(foreign=foreign))


def test_an_outcome_of_this_machine_must_be_made_from_its_last_lock():
    old, new = a_lock("a"), a_lock("b")
    assert outdated(new, [new, old]) == ""
    assert outdated(old, [new, old]) == "resolve has a new outcome since then"
    assert outdated(old, [a_lock("b", foreign=True), old]) == ""


def test_an_outcome_of_another_machine_must_be_made_from_a_lock_that_the_ledger_has():
    old, new = a_lock("a", foreign=True), a_lock("b", foreign=True)
    assert outdated(old, [new, old], foreign=True) == ""
    assert outdated(old, [a_lock("b"), old], foreign=True) == "", "the lock of this machine is another one"
    assert "does not have" in outdated(old, [new], foreign=True)


def test_a_claim_that_was_merged_later_does_not_hide_a_signed_outcome():
    check = replace(CHECK, tier=Tier.NUMERICS)
    task = replace(TASK, check=check, facets={"device": {"kind": "npu"}})
    plan = Plan(profile="p", matrix_digest="m", cells=(), entries=(), tasks={"k": task})
    signed, claim = (
        make_outcome("k", "probe", tier=Tier.NUMERICS, evidence=Evidence.HARDWARE, trust=trust)
        for trust in (
            Trust(foreign=True, signer="a2-host"),
            Trust(foreign=True, unsigned="no runner signed it"),
        )
    )
    ledger = SimpleNamespace(history=lambda key, limit: (claim, signed))
    assert read_attempts(plan, ledger).outcomes["k"].trust.signer == "a2-host"
