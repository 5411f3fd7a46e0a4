import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_outcome import make_outcome

from harness.check import Check
from harness.errors import EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, EXIT_OK, EXIT_UNEXPECTED
from harness.matrix.reading.load_matrix import load_matrix
from harness.outcome import Evidence, Failure, Judgement, Measured, State, Status, Tier
from harness.verdict.plan_verdicts import summarise_verdicts
from harness.verdict.verdict import (
    REWORDED,
    ExpectedFailure,
    Standing,
    failure_state,
    judge_against_expectation,
    judge_outcome,
)

#: The folder of what checks say, with its Chinese.
WORDS = Path(__file__).parents[3] / "harness/report/pages/words"


def judge(measurements, _params):
    return Judgement(status=Status.PASS if measurements["good"] else Status.FAIL)


def run(_context):
    return Measured(measurements={"good": True}, evidence=Evidence.STATIC)


CHECK = Check(name="probe", tier=Tier.STATIC, question="?", facets=(), run=run, judge=judge)


def outcome(state=State.COMPLETED, failure=None, **measurements):
    return make_outcome(state=state, measurements=measurements, failure=failure)


def verdict(status, expected=None, *, blocked_by_known=False):
    return judge_against_expectation(
        "cell",
        "probe",
        Judgement(status=status),
        expected=expected,
        blocked_by_known=blocked_by_known,
    )


KNOWN = ExpectedFailure(state="fail", reason="upstream defect", source="https://example.org/1")


def test_the_judge_of_the_check_decides_a_completed_outcome():
    assert judge_outcome(CHECK, outcome(good=True)).status is Status.PASS
    assert judge_outcome(CHECK, outcome(good=False)).status is Status.FAIL


def test_a_pass_with_calls_that_the_hardware_may_refuse_says_so():
    noted = {"permissive": {"operators": ["aten::a"], "any": False}}
    reason = "Permissive: it is unknown whether torch_npu refuses these calls: aten::a."
    assert judge_outcome(CHECK, replace(outcome(good=True), environment=noted)).reasons == (reason,)
    # A failure needs no such remark, and a clean pass has none.
    assert judge_outcome(CHECK, replace(outcome(good=False), environment=noted)).reasons == ()
    assert judge_outcome(CHECK, outcome(good=True)).reasons == ()


def test_an_outcome_that_did_not_complete_is_an_error_with_its_reason_and_fix():
    failure = Failure(kind="InfrastructureError", message="no network", fix="plug it in")
    judgement = judge_outcome(CHECK, outcome(State.ERROR, failure))
    assert judgement.status is Status.ERROR
    assert judgement.reasons == ("InfrastructureError: no network",)
    assert judgement.remedies == ("plug it in",)


def test_a_judge_that_cannot_read_the_measurements_is_an_error_not_a_pass():
    assert judge_outcome(CHECK, outcome()).status is Status.ERROR


LOSS = replace(CHECK, name="loss", tier=Tier.NUMERICS)


def ended(word, *, good=False):
    return replace(outcome(), measurements={"good": good, "state": word})


#: State -> (check, outcome) with this state.
SHOWN = {
    "fail": (CHECK, outcome(good=False)),
    "numeric-drift": (LOSS, ended("measured")),
    "timeout": (CHECK, outcome(State.TIMEOUT)),
    "timeout, as the program in the cell says": (LOSS, ended("hung")),
    "crash": (LOSS, ended("crashed")),
    "pass": (LOSS, ended("measured", good=True)),
    "error": (CHECK, outcome(State.ERROR, Failure(kind="InfrastructureError", message="x"))),
}


@pytest.mark.parametrize("expected", ["fail", "numeric-drift", "timeout", "crash", "unsupported"])
@pytest.mark.parametrize("shown", SHOWN)
def test_an_expectation_excuses_the_state_it_names_and_no_other(shown, expected):
    check, found = SHOWN[shown]
    judgement = judge_outcome(check, found)
    state = failure_state(check, found, judgement)
    assert state == shown.partition(",")[0]
    known = ExpectedFailure(state=expected, reason="slow", source="x")
    stood = judge_against_expectation("cell", check.name, judgement, expected=known, state=state)
    if state == "pass":
        assert stood.standing is Standing.UNEXPECTED_PASS
    elif state == "error":
        assert stood.standing is Standing.INCOMPLETE
    else:
        met = state == expected or (expected, state) == ("fail", "numeric-drift")
        assert stood.standing is (Standing.KNOWN if met else Standing.UNEXPECTED)


def test_unsupported_can_be_expected_and_is_no_failure_without_that():
    judgement = Judgement(status=Status.UNSUPPORTED)
    known = ExpectedFailure(state="unsupported", reason="no such operator", source="x")
    assert judge_against_expectation("c", "x", judgement, expected=known).standing is Standing.KNOWN
    assert judge_against_expectation("c", "x", judgement, expected=None).standing is Standing.AS_EXPECTED


def test_a_known_failure_is_known_and_an_unexpected_one_is_not():
    assert verdict(Status.FAIL, KNOWN).standing is Standing.KNOWN
    assert verdict(Status.FAIL).standing is Standing.UNEXPECTED


def failing(*reasons):
    known = replace(KNOWN, because=("npu_rotary_mul", "did not answer"), where="matrix.yaml:9")
    return judge_against_expectation(
        "cell", "probe", Judgement(status=Status.FAIL, reasons=reasons), expected=known
    )


def test_a_failure_whose_every_reason_is_known_is_known():
    stood = failing("a.py:3: npu_rotary_mul has no argument 'mode'", "the index did not answer")
    assert stood.standing is Standing.KNOWN


def test_a_further_reason_does_not_hide_behind_the_known_one():
    stood = failing("a.py:3: npu_rotary_mul has no argument 'mode'", "b.py:7: npu_swiglu is gone")
    assert stood.standing is Standing.UNEXPECTED
    assert (
        stood.reasons[-1] == "not covered by the expected failure (matrix.yaml:9): b.py:7: npu_swiglu is gone"
    )


@pytest.mark.parametrize(("earlier", "today"), REWORDED)
def test_an_expectation_with_the_wording_of_version_0_1_0_still_covers_its_failure(earlier, today):
    texts = {
        text
        for one in load_matrix(Path(__file__).parents[3] / "matrix.yaml").expectations.values()
        for text in one.because
    }
    texts |= json.loads((WORDS / "reasons.json").read_text("utf-8")).keys()
    assert any(today in text for text in texts), "reworded again: add the wording of today"
    for text, reason in ((earlier, today), (earlier, earlier), (today, earlier)):
        known = replace(KNOWN, because=(f"triton-ascend {text}",))
        judgement = Judgement(status=Status.FAIL, reasons=(f"No version of triton-ascend {reason}: ...",))
        assert judge_against_expectation("c", "x", judgement, expected=known).standing is Standing.KNOWN


def test_a_failure_that_gives_no_reason_is_not_the_known_one():
    stood = failing()
    assert stood.standing is Standing.UNEXPECTED
    assert stood.reasons == ("not covered by the expected failure (matrix.yaml:9): the check gave no reason",)


def test_an_expected_failure_that_passes_is_unexpected():
    assert verdict(Status.PASS, KNOWN).standing is Standing.UNEXPECTED_PASS


def test_an_infrastructure_error_does_not_count_as_the_expected_failure():
    assert verdict(Status.ERROR, KNOWN).standing is Standing.INCOMPLETE


def test_not_run_neither_meets_nor_breaks_an_expectation():
    assert verdict(Status.NOT_RUN, KNOWN).standing is Standing.AS_EXPECTED


def test_blocked_behind_a_known_failure_is_known():
    assert verdict(Status.BLOCKED, blocked_by_known=True).standing is Standing.KNOWN


def test_blocked_is_without_an_answer_and_no_failure_of_its_own():
    assert verdict(Status.BLOCKED).standing is Standing.INCOMPLETE
    assert summarise_verdicts([verdict(Status.ERROR), verdict(Status.BLOCKED)]).exit_code == EXIT_INCOMPLETE
    assert summarise_verdicts([verdict(Status.FAIL), verdict(Status.BLOCKED)]).exit_code == EXIT_UNEXPECTED


def test_exit_codes():
    assert summarise_verdicts([]).exit_code == EXIT_NOTHING_SELECTED
    partly_run = summarise_verdicts([verdict(Status.PASS), verdict(Status.NOT_RUN)])
    assert partly_run.exit_code == EXIT_OK
    assert partly_run.reasons == ("every check that ran came out as expected; 1 of 2 were not run",)
    assert summarise_verdicts([verdict(Status.PASS), verdict(Status.FAIL, KNOWN)]).exit_code == EXIT_OK
    assert (
        summarise_verdicts([verdict(Status.NOT_RUN), verdict(Status.UNSUPPORTED)]).exit_code
        == EXIT_NOTHING_SELECTED
    )
    assert summarise_verdicts([verdict(Status.FAIL)]).exit_code == EXIT_UNEXPECTED
    assert summarise_verdicts([verdict(Status.PASS, KNOWN)]).exit_code == EXIT_UNEXPECTED
    assert summarise_verdicts([verdict(Status.ERROR)]).exit_code == EXIT_INCOMPLETE
    assert summarise_verdicts([verdict(Status.INCONCLUSIVE)]).exit_code == EXIT_INCOMPLETE


@given(
    st.lists(st.tuples(st.sampled_from(Status), st.sampled_from([None, KNOWN]), st.booleans()), min_size=1)
)
def test_code_zero_means_nothing_failed_unexpectedly_and_nothing_lacks_an_answer(statuses):
    verdicts = [verdict(status, expected, blocked_by_known=known) for status, expected, known in statuses]
    summary = summarise_verdicts(verdicts)
    bad = {Status.ERROR, Status.STALE, Status.INCONCLUSIVE}
    if summary.exit_code == EXIT_OK:
        assert not any(v.status in bad for v in verdicts)
        assert all(v.expected for v in verdicts if v.status is Status.FAIL)
    assert sum(summary.by_status.values()) == len(verdicts)


@pytest.mark.parametrize("status", Status)
def test_an_outcome_without_a_verdict_is_no_evidence(status):
    measured = make_outcome(evidence=Evidence.HARDWARE)
    judged = judge_against_expectation(
        "cell", "probe", Judgement(status=status), outcome=measured, expected=None
    )
    with_verdict = {Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED}
    assert judged.evidence is (Evidence.HARDWARE if status in with_verdict else None)
