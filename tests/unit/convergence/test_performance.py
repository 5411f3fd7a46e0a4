"""Regressions of time, memory and throughput are distinguished from noise; improvements never fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.convergence.decision.performance import ALPHA, LEAST_RUNS, compare


def regressions(references, candidate):
    return [one for one in compare(references, candidate)[0] if one.worse]


def run(rng, *, slower=1.0, memory=1.0, noise=0.05):
    seconds = 2.0 * slower * np.exp(rng.normal(0, noise) + rng.normal(0, 0.1, 30))
    seconds[0] = 20.0
    return {
        "seconds": seconds.tolist(),
        "throughput": (1000 / seconds).tolist(),
        "memory_gb": (30.0 * memory * np.exp(rng.normal(0, 0.002, 30))).tolist(),
    }


@pytest.fixture
def references(rng):
    return [run(rng) for _ in range(10)]


def test_a_slower_run_is_named_with_what_chance_explains(references, rng):
    found = regressions(references, run(rng, slower=1.6))

    assert {one.metric for one in found} == {"seconds", "throughput"}
    assert "more than chance explains" in found[0].sentence()


def test_more_memory_is_found_where_time_says_nothing(references, rng):
    assert [one.metric for one in regressions(references, run(rng, memory=1.2))] == ["memory_gb"]


@pytest.mark.parametrize("factor", [0.9, 0.5, 0.01])
def test_an_improvement_never_fails(references, rng, factor):
    assert regressions(references, run(rng, slower=factor, memory=factor)) == []


def test_one_slow_step_is_no_regression(references, rng):
    hiccup = run(rng)
    hiccup["seconds"][17] = 500.0

    assert regressions(references, hiccup) == []


def test_healthy_runs_are_called_a_regression_no_more_often_than_stated():
    alarms = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        alarms += bool(regressions([run(rng) for _ in range(10)], run(rng)))

    # 0.5 % of 400 is 2; 7 is the 99.5 % limit of that Poisson number.
    assert alarms <= 7
    assert ALPHA == 0.005


def test_what_cannot_be_judged_is_named(references, rng):
    candidate = {**run(rng), "seconds": [math.nan] * 30}
    few = references[: LEAST_RUNS - 1]

    found, notes = compare(references, candidate)
    assert "seconds" not in {one.metric for one in found}
    assert "seconds is not judged: the run has no usable values of it" in notes
    assert compare(few, run(rng))[0] == []
    assert "4 are needed" in compare(few, run(rng))[1][0]


@example([], [0.0, 0.0, 8.988465674311579e307, 8.98846567431158e307])  # their mean is past the largest double
@given(
    st.lists(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6), min_size=0, max_size=8),
    st.lists(st.floats(), max_size=6),
)
def test_any_numbers_are_judged_or_named(references, candidate):
    found, notes = compare([{"seconds": values} for values in references], {"seconds": candidate})

    assert len(found) + len(notes) == 3
