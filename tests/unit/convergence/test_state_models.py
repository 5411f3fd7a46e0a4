import dataclasses

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="decisions are made on the host")

from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision_rule import FEATURES, Rule
from harness.convergence.decision.state_models import state_models
from harness.outcome import Status

PLAIN = Rule(features=tuple(dataclasses.replace(one, at_equal_state=False) for one in FEATURES))


def solving(rng, make_curve, shift=0.0):
    """A run in which the share of solved groups follows the reward, as the speed of learning does."""
    run = make_curve(rng)
    reward = np.asarray(run["reward"])
    solved = np.clip(0.1 + 0.5 * reward + shift + rng.normal(0, 0.02, len(reward)), 0, 1)
    return {**run, "zero_variance_groups": solved.tolist()}


@pytest.fixture
def learned(rng, make_curve):
    return [solving(rng, make_curve) for _ in range(20)]


def test_a_shift_at_equal_reward_shows_although_each_series_is_in_its_band(learned, rng, make_curve):
    # Lower than the references at the same reward; low shares alone are never a fault.
    runs = [solving(rng, make_curve, shift=-0.05) for _ in range(3)]

    decision = decide(learned, runs)

    assert decide(learned, runs, PLAIN).status is Status.PASS
    assert decision.status is Status.FAIL
    assert decision.statistic.name == "zero_variance_groups/at equal state"


def test_healthy_runs_pass_at_equal_state(learned, rng, make_curve):
    decisions = [decide(learned, [solving(rng, make_curve) for _ in range(3)]) for _ in range(40)]

    assert {decision.status for decision in decisions} == {Status.PASS}


def test_a_reference_run_is_compared_with_models_that_have_not_seen_it(learned):
    arrays = [{name: np.asarray(line) for name, line in run.items()} for run in learned]
    models = state_models(arrays, Rule())
    others = state_models(arrays[1:], Rule())

    for unseen, other in zip(models.without[0], others.all_runs, strict=True):
        assert unseen.feature == other.feature
        np.testing.assert_allclose(unseen.remainder(arrays[0]), other.remainder(arrays[0]), atol=1e-3)


def test_a_series_is_not_predicted_from_itself_nor_from_absent_ones(learned):
    arrays = [{name: np.asarray(line) for name, line in run.items()} for run in learned]
    models = {one.feature.name: one for one in state_models(arrays, Rule()).all_runs}

    assert [one.name for one in models["entropy"].state] == ["zero_variance_groups"]
    assert [one.name for one in models["grad_norm"].state] == ["entropy", "zero_variance_groups"]
    assert "mismatch" not in models
    assert models["entropy"].remainder({**arrays[0], "entropy": arrays[0]["entropy"][:5]}) is None
    assert models["entropy"].remainder({"reward": arrays[0]["reward"]}) is None


def test_a_zero_gradient_of_solved_groups_is_no_fault(learned, rng, make_curve):
    run = solving(rng, make_curve)
    run["grad_norm"][-1] = 0.0

    assert decide(learned, [run]).status is Status.PASS
