"""Every behaviour of a candidate becomes a verdict with a reason, never an exception of this project."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.errors import InputError
from harness.numerics.loss.candidate import (
    CandidateResult,
    UnsupportedCaseError,
    evaluate,
    load_results,
    save_results,
)
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import UNCALLABLE, LossStatus


def raises(case):
    raise RuntimeError("first line\nsecond line " + "x" * 1000)


def refuses(case):
    raise UnsupportedCaseError("no such loss")


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (raises, "raised RuntimeError: first line second line"),
        (lambda case: None, "returned NoneType"),
        (lambda case: 1.0, "returned float"),
        (lambda case: CandidateResult(), "returned no value"),
        (lambda case: CandidateResult(value=np.array(1, dtype=np.int64)), "dtype int64"),
        (lambda case: CandidateResult(value=1.0, gradient=np.array(["a"])), "gradient has dtype"),
        (lambda case: CandidateResult(value=1.0, gradient=np.array([1 + 2j])), "dtype complex128"),
        (lambda case: CandidateResult(value=1.0, gradient=np.ones(3)), "gradient has shape (3,)"),
        (
            lambda case: CandidateResult(value=np.float32(np.inf), gradient=np.ones((16, 64))),
            "value is not finite",
        ),
    ],
)
def test_a_bad_candidate_fails_with_a_reason(candidate, reason):
    case = battery(seed=1)[0]
    verdict = judge(case, evaluate(candidate, [case])[case.name])
    assert verdict.status is LossStatus.FAIL
    assert any(reason in entry for entry in verdict.reasons)
    assert all(len(entry) < 500 for entry in verdict.reasons)


def test_a_refusal_is_unsupported():
    case = battery(seed=1)[0]
    assert judge(case, evaluate(refuses, [case])[case.name]).status is LossStatus.UNSUPPORTED


def test_the_case_at_hand_is_announced_before_it_runs():
    announced = []
    cases = battery(seed=1)[:3]
    evaluate(raises, cases, before=lambda case: announced.append(case.name))
    assert announced == [case.name for case in cases]


def test_an_interrupt_passes_through():
    def interrupted(case):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(interrupted, battery(seed=1)[:1])


def test_results_survive_their_file(tmp_path):
    results = {
        "a": CandidateResult(value=np.float64(1.5), gradient=np.array([[1.0, 2.0]]), seconds=0.25),
        "b": CandidateResult(error="raised"),
        "c": CandidateResult(unsupported="no"),
    }
    save_results(tmp_path / "r.npz", results)
    loaded = load_results(tmp_path / "r.npz")
    assert loaded["a"].value == 1.5
    assert loaded["a"].gradient.tolist() == [[1.0, 2.0]]
    assert (loaded["b"].error, loaded["c"].unsupported) == ("raised", "no")


def test_a_file_of_another_kind_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(InputError, match="npz file cannot be read"):
        load_results(tmp_path / "other.npz")


def test_an_exception_of_the_code_that_calls_verl_is_told_from_one_of_verl() -> None:
    (case,) = battery(seed=1)[:1]
    reasons = {}
    # A program has the name __main__ and keeps its package; code that exec runs may have neither.
    for package in (
        "harness.numerics.loss",
        "harness.numerics",
        "harness.numericsx",
        "verl.trainer.ppo",
        None,
    ):
        module: dict[str, Any] = {"__name__": "__main__", "__package__": package}
        exec("def candidate(case):\n    raise TypeError('loss() takes 3 arguments')", module)
        reasons[package] = evaluate(module["candidate"], [case])[case.name].error
    told = "TypeError: loss() takes 3 arguments"
    called, raised = f"{UNCALLABLE}{told}", f"raised {told}"
    assert reasons == {
        "harness.numerics.loss": called,
        "harness.numerics": called,
        "harness.numericsx": raised,
        "verl.trainer.ppo": raised,
        None: raised,
    }
