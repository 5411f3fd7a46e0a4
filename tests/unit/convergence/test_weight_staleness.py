"""How old the weights are that a rollout samples with, from verl's own metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_samples import run_json

from harness.convergence.trainer import one_step_check
from harness.convergence.trainer.judging.weight_staleness import largest_ratio, measure_staleness
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements
from harness.convergence.trainer.trainer_recipe import RECIPES
from harness.measurements import read_shape
from harness.outcome import Status

UPDATES = 8
STEPS = 36
# The first steps of verl 0.9.1, one step off its policy, on the simulated device, seed 0: as it is, and with
# weights that never reach the rollout. Reward stays at 0.04 in the second, rises to 0.76 in the first.
HEALTHY = {
    "rollout_kl": [0.0, 0.075, 0.074, 0.080, 0.043, 0.039, 0.064, 0.064, 0.072, 0.069, 0.066, 0.067],
    "ppo_kl": [0.080, 0.034, 0.059, 0.046, 0.058, 0.034, 0.056, 0.025, 0.085, 0.065, 0.064, 0.064],
}
LOST = {
    "rollout_kl": [0.0, 0.075, 0.160, 0.283, 0.432, 0.483, 0.584, 0.778, 0.945, 1.099, 1.281, 1.375],
    "ppo_kl": [0.080, 0.034, 0.066, 0.038, 0.075, 0.077, 0.104, 0.073, 0.071, 0.061, 0.123, 0.078],
}


def test_weights_of_one_step_ago_explain_the_gap_and_lost_ones_do_not():
    healthy, lost = measure_staleness(HEALTHY, UPDATES), measure_staleness(LOST, UPDATES)

    assert healthy.ratio == pytest.approx(1.2, abs=0.1)
    assert not healthy.alarm
    assert "within the 3.66" in healthy.sentence()
    assert lost.ratio > 9
    assert lost.alarm
    assert "more than the 3.66" in lost.sentence()


def test_lost_weights_show_in_the_fifth_step():
    assert measure_staleness({name: values[:4] for name, values in LOST.items()}, UPDATES) is None
    assert measure_staleness({name: values[:5] for name, values in LOST.items()}, UPDATES).alarm


@given(st.integers(2, 200), st.floats(0.01, 10))
def test_updates_that_all_go_the_same_way_are_the_limit(updates, length):
    """The divergence is the square of the distance: the mean before each update against that after all."""
    before = [(length * update / updates) ** 2 for update in range(updates)]

    assert largest_ratio(updates) == pytest.approx(length**2 / (sum(before) / updates))


@pytest.mark.parametrize("series", [{}, {"ppo_kl": [0.1] * 9}, {"rollout_kl": [0.1] * 9}])
def test_what_verl_does_not_log_is_not_judged(series):
    assert measure_staleness(series, UPDATES) is None


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=9),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=9),
)
def test_any_numbers_give_a_lag_or_none(gaps, moves):
    found = measure_staleness({"rollout_kl": gaps, "ppo_kl": moves}, UPDATES)

    assert (found is None) == (min(len(gaps), len(moves)) < 5)
    assert found is None or found.sentence()


def measured(**changes):
    """Measurements of a run that learns, three times the length of what was recorded."""
    series = {
        "reward": [0.05 + 0.02 * step for step in range(STEPS)],
        "entropy": [2.0] * STEPS,
        "grad_norm": [1.0] * STEPS,
        **{name: values * 3 for name, values in HEALTHY.items()},
    }
    written = run_json(
        recipe={**RECIPES["grpo"].as_json(), "steps": STEPS},
        digest="of no recorded run",
        versions={"verl": "0.9.1"},
        series={name: values for name, values in {**series, **changes}.items() if values is not None},
    )
    return read_shape(TrainerMeasurements, written)


def judged(**changes):
    return one_step_check.CHECK.judge(measured(**changes), {})


def test_a_run_with_weights_of_one_step_ago_passes_and_says_so():
    judgement = judged()

    assert judgement.status is Status.PASS
    assert "one-step staleness explains" in judgement.reasons[0]


@pytest.mark.parametrize("learns", [True, False])
def test_lost_weights_fail_by_the_gap_first_whatever_the_reward_does(learns):
    flat = {} if learns else {"reward": [0.04, 0.05] * (STEPS // 2)}
    judgement = judged(**{name: values * 3 for name, values in LOST.items()}, **flat)

    assert judgement.status is Status.FAIL
    assert "more than the 3.66" in judgement.reasons[0]
    assert "weight sync" in judgement.remedies[0]
    assert any("not significantly above" in reason for reason in judgement.reasons) == (not learns)


def test_a_gap_that_is_no_number_is_no_agreement():
    judgement = judged(rollout_kl=["nan"] * STEPS)

    assert judgement.status is Status.FAIL
    assert "nan" in judgement.reasons[0]


def test_a_gap_that_verl_does_not_log_passes_nothing():
    judgement = judged(rollout_kl=None)

    assert judgement.status is Status.INCONCLUSIVE
    assert "lost weight sync would not be detected" in judgement.reasons[0]
