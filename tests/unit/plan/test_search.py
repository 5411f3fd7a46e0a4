import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.plan.bisection.search import Bisection, Culprit, FlakeRates, minimum_probes, possible_probes


def ask(vector, culprit, chance, noise):
    bad = culprit.span >= 0 and vector[culprit.span] >= culprit.step
    wrong = noise.false_pass if bad else noise.false_fail
    return bad != (chance.random() < wrong)


def hunt(search, culprit, chance=None, costs=None, limit=500):
    chance = chance or random.Random(0)
    asked = []
    while (probe := search.best(costs)) is not None:
        assert len(asked) < limit
        asked.append(probe)
        search.observe(probe, failed=ask(search.probes[probe], culprit, chance, search.noise))
    return search.leading, asked


@given(st.integers(1, 300), st.data())
@settings(max_examples=60, deadline=None)
def test_clean_outcomes_find_every_step_as_fast_as_a_binary_search(length, data):
    step = data.draw(st.integers(1, length))
    found, asked = hunt(Bisection([length], doubt=0), Culprit(span=0, step=step))
    assert found.culprits == (Culprit(span=0, step=step),)
    assert len(asked) <= math.ceil(math.log2(length)) + 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=3).filter(any), st.data())
@settings(max_examples=60, deadline=None)
def test_the_guilty_thing_is_told_from_the_others(lengths, data):
    span = data.draw(st.sampled_from([number for number, length in enumerate(lengths) if length]))
    culprit = Culprit(span=span, step=data.draw(st.integers(1, lengths[span])))
    found, _ = hunt(Bisection(lengths), culprit)
    assert found.culprits == (culprit,)
    assert found.probability >= 0.995


def test_flaky_failures_are_not_believed_at_once():
    noise = FlakeRates(false_fail=0.2)
    right = probes = 0
    for trial in range(100):
        chance = random.Random(trial)
        culprit = Culprit(span=0, step=chance.randint(1, 200))
        found, asked = hunt(Bisection([200], noise=noise), culprit, chance)
        right += found.culprits == (culprit,)
        probes += len(asked)
    assert right >= 97
    assert minimum_probes(200, noise) * 100 <= probes < 2.2 * 100 * math.log2(200)


def test_things_that_only_move_together_are_named_together():
    together = [(0, 0, 0), (1, 1, 0), (1, 1, 1), (0, 0, 1)]
    found, _ = hunt(Bisection([1, 1, 1], probes=together), Culprit(span=0, step=1))
    assert set(found.culprits) == {Culprit(span=0, step=1), Culprit(span=1, step=1)}


def test_a_bad_cell_that_is_fine_is_found_out():
    found, _ = hunt(Bisection([50], noise=FlakeRates(false_pass=0.1)), Culprit(span=-1, step=0))
    assert found.culprits == (Culprit(span=-1, step=0),)


def test_a_good_cell_that_is_bad_is_found_out():
    search = Bisection([50])
    while (probe := search.best()) is not None:
        search.observe(probe, failed=True)
    assert search.leading.culprits == (Culprit(span=-1, step=1),)


def test_the_cheap_probe_is_asked_first():
    search = Bisection([10], doubt=0)
    costs = [1.0 if probe in (3, 7) else 1000.0 for probe in range(11)]
    assert search.best(costs) in (3, 7)


def test_what_is_known_already_is_not_asked_again():
    search = Bisection([8], doubt=0)
    search.observe(4, failed=True)
    search.observe(3, failed=False)
    assert search.best() is None
    assert search.finding.culprits == (Culprit(span=0, step=4),)


def test_outcomes_that_contradict_each_other_without_noise():
    search = Bisection([4], doubt=0)
    search.observe(2, failed=True)
    with pytest.raises(ValueError, match="flaky"):
        search.observe(3, failed=False)


def test_the_forecast_of_a_search_fits_the_searches():
    search = Bisection([64], noise=FlakeRates(false_fail=0.1))
    told = search.forecast(trials=60)
    assert search.forecast(trials=60) == told
    assert told.right >= 0.95
    assert minimum_probes(64, search.noise) * 0.9 <= told.probes <= 2 * math.log2(64)
    dear = search.forecast(
        costs=lambda asked: [1.0 if probe in asked else 50.0 for probe in range(65)], trials=30
    )
    assert dear.distinct <= told.probes
    assert dear.cost >= 50


def test_many_things_are_moved_one_at_a_time():
    vectors = possible_probes([500, 500])
    assert len(vectors) == len(set(vectors)) <= 4 * 501
    assert {(0, 0), (500, 500), (250, 0), (250, 500), (0, 250), (500, 250)} <= set(vectors)


def test_searches_that_make_no_sense():
    with pytest.raises(ValueError, match="do not differ"):
        Bisection([0, 0])
    with pytest.raises(ValueError, match="half of the time"):
        FlakeRates(false_fail=0.5)
    with pytest.raises(ValueError, match="has 3 steps"):
        Bisection([3], prior=[[1.0]])


def test_suspicion_goes_where_the_prior_says():
    prior = [1.0] * 100
    prior[76] = 1000.0
    found, asked = hunt(Bisection([100], prior=[prior], doubt=0), Culprit(span=0, step=77))
    assert found.culprits == (Culprit(span=0, step=77),)
    assert len(asked) <= 3
