import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.verdict.gate.flake import PASSES_REQUIRED, QUARANTINE_DAYS, Attempt, Stability, _at_least, decide

DAY = 86400.0
NOW = 1000 * DAY


def attempts(word, start=NOW - 5 * DAY):
    return [
        Attempt(passed=letter == "p", time=start + index, position=int(start) + index)
        for index, letter in enumerate(word)
    ]


FLAKY_BASE = [attempts("pfpp"), attempts("pppp"), attempts("ppfp")]


def stability(head, base=FLAKY_BASE):
    return decide(attempts(head, NOW), base, now=NOW + DAY).stability


def test_only_passes_and_only_failures_are_what_they_look_like():
    assert stability("ppp") is Stability.PASSES
    assert stability("ff") is Stability.FAILS


def test_it_takes_a_history_and_passes_in_a_row_to_be_called_flaky():
    assert stability("fppp") is Stability.FLAKY
    assert stability("fpp") is Stability.UNPROVEN
    assert stability("ppppf") is Stability.UNPROVEN


def test_chance_that_came_with_this_change_is_not_excused():
    assert stability("fppp", [attempts("pppp"), attempts("fff")]) is Stability.INTRODUCED
    assert stability("fppp", []) is Stability.INTRODUCED


def test_failing_more_often_than_before_is_not_excused():
    base = [attempts("p" * 40 + "f" + "p" * 10)]
    assert stability("fffppp", base) is Stability.WORSE


def test_quarantine_ends():
    old = [attempts("pfpp", NOW - (QUARANTINE_DAYS + 5) * DAY)]
    assert stability("fppp", old) is Stability.EXPIRED


def test_quarantine_ends_although_the_clock_was_set_back():
    old = [attempts("pfpp", NOW - (QUARANTINE_DAYS + 5) * DAY)]
    assert decide(attempts("fppp", NOW), old, now=NOW - 20 * DAY).stability is Stability.EXPIRED


def test_the_chance_is_that_of_the_beta_binomial():
    # Without a history, every number of failures is equally likely.
    assert _at_least(5, 5, 0.0, 0.0) == pytest.approx(1 / 6)
    assert _at_least(3, 5, 0.0, 0.0) == pytest.approx(3 / 6)
    # scipy.stats.betabinom.sf(2, 5, 3, 31) and (0, 4, 1.5, 10).
    assert _at_least(3, 5, 2.0, 30.0) == pytest.approx(0.010849859147, rel=1e-6)
    assert _at_least(1, 4, 0.5, 9.0) == pytest.approx(0.390171580876, rel=1e-6)


def test_nothing_attempted_is_no_decision():
    with pytest.raises(ValueError, match="no attempt"):
        decide([], [], now=NOW)


words = st.text("pf", min_size=1, max_size=12)


@given(words, st.lists(words, max_size=6))
def test_flaky_is_never_said_without_passes_in_a_row_at_the_end_and_both_ways_before(head, base):
    found = decide(attempts(head, NOW), [attempts(word) for word in base], now=NOW + DAY)
    if found.stability is Stability.FLAKY:
        assert head.endswith("p" * PASSES_REQUIRED)
        assert "f" in head
        assert any(len(set(word)) == 2 for word in base)
    if "p" not in head:
        assert found.stability is Stability.FAILS
    assert bool(found.reason) == (found.stability is not Stability.PASSES)


def test_a_regression_that_always_fails_is_never_called_flaky():
    chance = random.Random(1)
    for _ in range(300):
        base = [attempts("".join(chance.choices("pf", (9, 1), k=8))) for _ in range(4)]
        assert stability("f" * chance.randrange(1, 6), base) is Stability.FAILS
