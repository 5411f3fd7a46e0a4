"""Whether a reward curve shows that its policy reads its prompts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.convergence.trainer.judging.learning_test import (
    ROUNDOFF,
    FirstStepDifference,
    first_step_differences,
    judge_learning,
)

BLIND = 0.4


def curve(start, end, *, noise=0.02, steps=30, seed=0):
    rng = np.random.default_rng(seed)
    return np.linspace(start, end, steps) + noise * rng.standard_normal(steps)


def test_a_curve_that_rises_above_the_blind_bound_passes():
    found = judge_learning(curve(0.05, 0.75), BLIND)

    assert found.passed
    assert found.bound < found.final
    assert "above 0.400" in found.sentence()


@pytest.mark.parametrize("end", [0.05, 0.2, 0.4])
def test_a_curve_that_ends_where_a_blind_policy_can_be_fails(end):
    found = judge_learning(curve(0.05, end), BLIND)

    assert not found.passed
    assert "not significantly above" in found.sentence()


def test_a_high_curve_that_falls_does_not_rise():
    found = judge_learning(curve(0.9, 0.6), BLIND)

    assert not found.passed
    assert "does not rise" in found.sentence()


def test_a_blind_policy_passes_no_more_often_than_stated():
    passed = sum(
        judge_learning(
            curve(0.05, 0.4, seed=seed)[:24].tolist()
            + [0.4 + 0.02 * x for x in np.random.default_rng(seed + 9999).standard_normal(6)],
            BLIND,
        ).passed
        for seed in range(2000)
    )

    # 0.3 % of 2000 is 6; 13 is the 99 % limit of that Poisson number.
    assert passed <= 13


@given(st.lists(st.floats(0, 1), min_size=12, max_size=80))
def test_any_curve_is_judged_and_its_bound_lies_below_its_end(reward):
    found = judge_learning(reward, BLIND)

    assert found.bound <= found.final + 1e-12
    assert math.isfinite(found.bound)


def test_the_first_step_is_held_against_the_recorded_one():
    recorded = {"entropy": (2.5, 1.0), "grad_norm": (1.0,), "ppo_kl": (0.1,), "reward": (0.2,)}
    same = {"entropy": (2.5 * (1 + ROUNDOFF / 2), 9.0), "grad_norm": (1.0,), "ppo_kl": (0.1,)}
    other = {**same, "grad_norm": (1.0 + 2 * ROUNDOFF,)}

    assert not any(one.alarm for one in first_step_differences(same, recorded, same_verl=True))
    assert not any(one.alarm for one in first_step_differences(other, recorded, same_verl=False))
    worst = first_step_differences(other, recorded, same_verl=True)[0]
    assert worst.series == "grad_norm"
    assert worst.alarm
    assert "of which rounding explains 4.9e-04" in worst.sentence()


@pytest.mark.parametrize(("value", "recorded"), [(math.nan, 1.0), (math.inf, 1.0), (1e-9, 0.0)])
def test_what_cannot_be_compared_is_an_alarm(value, recorded):
    assert FirstStepDifference(series="entropy", value=value, recorded=recorded).alarm
