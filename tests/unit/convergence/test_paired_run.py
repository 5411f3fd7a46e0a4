import numpy as np
import pytest

pytest.importorskip("pydantic", reason="decisions are made on the host")

from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.paired_run import deviation
from harness.convergence.decision.reference_set import for_recipe
from harness.convergence.smoke.smoke_recipe import RECIPES
from harness.outcome import Status

SPREAD = {"grad_norm": np.array([0.1, 0.1, 0.1]), "reward": np.array([0.0, 0.0, 0.0])}


def lines(*values):
    return {"grad_norm": np.array(values), "reward": np.array([1.0, 2.0, 3.0])}


def test_a_run_equals_its_twin():
    found = deviation(lines(1, 2, 3), lines(1, 2, 3), SPREAD, Rule(), Rule().twin_limit)

    assert found is not None
    assert not found.alarm


def test_a_small_difference_in_the_first_updates_is_an_alarm():
    found = deviation(lines(1.01, 2, 3), lines(1, 2, 3), SPREAD, Rule(), Rule().twin_limit)

    assert found is not None
    assert found.alarm
    assert found.sentence().startswith("grad_norm differs at step 1 from the same seed")


@pytest.mark.parametrize("later", [1e6, float("nan")])
def test_what_comes_after_the_first_steps_is_not_compared(later):
    found = deviation(lines(1, 2, later), lines(1, 2, 3), SPREAD, Rule(), Rule().twin_limit)

    assert found is not None
    assert not found.alarm


def test_nothing_in_common_is_no_finding():
    assert deviation({}, lines(1, 2, 3), SPREAD, Rule(), Rule().twin_limit) is None
    assert (
        deviation(lines(float("nan"), float("nan"), 0), lines(1, 2, 3), SPREAD, Rule(), Rule().twin_limit)
        is None
    )


@pytest.fixture
def recorded():
    found = for_recipe(RECIPES["gspo"].digest())
    assert found is not None
    return found


def with_first_steps(run, twin, factor):
    """A healthy run that starts as its twin does, but for clip_fraction."""
    changed = {name: (*twin[name], *run[name][len(twin[name]) :]) for name in run}
    changed["clip_fraction"] = tuple(factor * value for value in changed["clip_fraction"])
    return changed


@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (1.01, Status.FAIL)])
def test_one_percent_in_the_clip_fraction_shows_only_against_the_twin(recorded, factor, status):
    twins = list(recorded.twins.values())
    runs = [with_first_steps(run, twin, factor) for run, twin in zip(recorded.runs, twins, strict=False)]

    assert decide(recorded.runs, runs).status is Status.PASS
    decision = decide(recorded.runs, runs, twins=twins)

    assert decision.status is status
    if status is Status.FAIL:
        assert decision.decided_by == "twin"
        assert "clip_fraction" in decision.reasons[0]
        assert decision.runs_used == 3


def test_a_flipped_token_in_one_run_is_forgiven(recorded):
    twins = list(recorded.twins.values())
    runs = [with_first_steps(run, twin, 1.0) for run, twin in zip(recorded.runs, twins, strict=False)]
    runs[0]["clip_fraction"] = tuple(1.01 * value for value in runs[0]["clip_fraction"])

    assert decide(recorded.runs, runs[:1], twins=twins).runs_wanted == 2
    assert decide(recorded.runs, runs, twins=twins).status is Status.PASS


def with_clips(run, factor):
    return {**run, "clip_fraction": tuple(factor * value for value in run["clip_fraction"])}


@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (1.01, Status.FAIL)])
def test_a_reference_run_of_the_same_seed_is_recognised_by_its_first_step(recorded, factor, status):
    # The second run has a seed of the references; the rule would not need it to accept the first.
    first, _, third = (
        with_first_steps(run, twin, 1.0)
        for run, twin in zip(recorded.runs, recorded.twins.values(), strict=False)
    )
    runs = [first, with_clips(recorded.runs[7], factor), third]

    decision = decide(recorded.runs, runs)

    assert decision.status is status
    if status is Status.FAIL:
        assert decision.decided_by == "twin"
        assert decision.reasons[0].startswith(
            "In 1 of 3 runs, clip_fraction differs at step 1 from the same seed"
        )


@pytest.mark.parametrize("series", ["reward", "entropy", "response_length"])
def test_a_run_that_samples_something_else_is_no_twin(recorded, series):
    run = with_clips(recorded.runs[7], 1.01)
    run[series] = (run[series][0] * 1.0001, *run[series][1:])

    assert decide(recorded.runs, [run]).status is Status.PASS
    assert decide(recorded.runs, [run]).twins == (None,)


def test_rewards_alone_do_not_make_a_twin(recorded):
    run = with_clips(recorded.runs[7], 1.01)
    lengths = {**run}
    references = [{**one} for one in recorded.runs]
    for one in (lengths, *references):
        del one["response_length"], one["zero_variance_groups"]

    assert decide(references, [lengths]).twins == (None,)


def test_a_damaged_twin_is_named(recorded):
    twins = [dict(twin) for twin in recorded.twins.values()]
    runs = [with_first_steps(run, twin, 1.0) for run, twin in zip(recorded.runs, twins, strict=False)]
    twins[0]["clip_fraction"] = (float("nan"), *twins[0]["clip_fraction"][1:])
    del twins[0]["pg_loss"]

    notes = decide(recorded.runs, runs, twins=twins).notes

    assert any(
        note.startswith("run 1 is not compared with the same seed in clip_fraction, pg_loss")
        for note in notes
    )
