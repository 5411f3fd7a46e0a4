import dataclasses
import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pydantic", reason="decisions are made on the host")

from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision import Decision
from harness.convergence.decision.decision_rule import FEATURES, Rule
from harness.digest import canonical_json
from harness.measurements import read_shape
from harness.outcome import Status
from harness.serialisation import json_object, to_json


def test_healthy_runs_pass_and_cost_little(references, rng, make_curve):
    decisions = [decide(references, [make_curve(rng) for _ in range(3)]) for _ in range(60)]

    assert {decision.status for decision in decisions} == {Status.PASS}
    assert np.mean([decision.runs_used for decision in decisions]) <= 1.3


def test_a_suspicion_that_a_second_run_clears_costs_no_third(references, rng, make_curve):
    decisions = [decide(references, [make_curve(rng) for _ in range(3)]) for _ in range(60)]
    cleared = [one for one in decisions if one.runs_used == 2]

    assert cleared
    assert all(one.status is Status.PASS and one.runs_wanted == 0 for one in cleared)
    assert all(
        one.looks[-1].runs == 2 and one.looks[-1].statistic.p >= Rule().screen_alpha for one in cleared
    )


@pytest.mark.parametrize(
    "kind",
    ["flat", "declines", "late collapse", "slower", "oscillating", "noisy", "low plateau", "NaN", "stuck"],
)
def test_each_kind_of_broken_curve_fails(references, rng, make_curve, kind):
    decision = decide(references, [make_curve(rng, kind) for _ in range(3)])

    assert decision.status is Status.FAIL
    assert decision.remedies


@pytest.mark.parametrize(
    ("series", "change", "named"),
    [
        ("grad_norm", lambda value: 2 * value, "grad_norm"),
        ("clip_fraction", lambda value: 0.0, "clip_fraction"),
        ("entropy", lambda value: 1.5 * value, "entropy"),
        ("mismatch", lambda value: 0.08, "mismatch"),
    ],
)
def test_telemetry_shows_what_the_reward_hides(references, rng, make_curve, series, change, named):
    runs = [make_curve(rng) for _ in range(3)]
    for run in runs:
        run[series] = [change(value) for value in run[series]]

    decision = decide(references, runs)

    assert decision.status is Status.FAIL
    assert decision.statistic is not None
    assert decision.statistic.name.startswith(named)
    assert "standard deviations" in decision.reasons[0]


@pytest.mark.parametrize(
    ("series", "value", "reason"),
    [
        ("grad_norm", math.inf, "grad_norm is inf at step 1"),
        ("grad_norm", 0.0, "grad_norm is below"),
        ("zero_variance_groups", 1.0, "equal rewards"),
        ("mismatch", 0.4, "rollout and trainer disagree"),
    ],
)
def test_a_gate_fails_a_single_run_at_once(references, rng, make_curve, series, value, reason):
    run = make_curve(rng)
    run[series] = [value] * 60

    decision = decide(references, [run])

    assert decision.status is Status.FAIL
    assert decision.decided_by == "gate"
    assert decision.runs_cost < 0.2
    assert reason in decision.reasons[0]


def test_no_statistic_fails_a_stack_on_one_run(references, rng, make_curve):
    decision = decide(references, [make_curve(rng, "flat")])

    assert decision.status is Status.INCONCLUSIVE
    assert decision.runs_wanted == 2
    assert "suspicious" in decision.reasons[0]


def test_one_freak_run_among_healthy_ones_fails_no_stack(references, rng, make_curve):
    runs = [make_curve(rng) for _ in range(3)]
    runs[0]["entropy"] = [20 * value for value in runs[0]["entropy"]]

    decision = decide(references, runs)

    assert decision.status is Status.INCONCLUSIVE
    assert decision.runs_used == 3
    assert decision.statistic is not None
    assert decision.statistic.name.startswith("entropy")
    assert "not every run shows it" in decision.reasons[0]
    assert "more seeds" in decision.remedies[0]


def test_a_suspicious_run_that_was_stopped_is_told_of_in_a_pass(references, rng, make_curve):
    runs = [make_curve(rng) for _ in range(3)]
    runs[0] = {name: values[:24] for name, values in make_curve(rng, "flat").items()}

    decision = decide(references, runs)

    assert decision.status is Status.PASS
    assert decision.reasons[0].startswith("2 runs within")
    assert "do not confirm the suspicion that ended 1 run" in decision.reasons[1]


def test_a_solved_step_without_gradient_is_no_fault(references, rng, make_curve):
    run = make_curve(rng)
    run["grad_norm"][55] = 0.0

    decision = decide(references, [run])

    assert decision.status is Status.PASS
    assert decision.runs_used == 1


def with_groups(run, rng, *, early=(), more=0.0):
    """The run with the share of its 32 groups that have no signal: none before step 26, then 0.6; `early`: steps
    in which one group has none; `more`: how many more of them have none at any time."""
    expected = np.where(np.arange(60) < 26, 0.0, 0.6) + more
    share = rng.binomial(32, expected) / 32
    share[list(early)] += 1 / 32
    return {**run, "zero_variance_groups": share.tolist()}


def test_one_group_without_signal_where_no_reference_has_one_is_no_fault(references, rng, make_curve):
    known = [with_groups(run, rng) for run in references[:10]]
    stacks = [
        [with_groups(make_curve(rng), rng, early=(step, step + 1)) for step in (20, 21, 22)]
        for _ in range(20)
    ]
    # What ten runs agree on would be all there is.
    exact = Rule(features=tuple(dataclasses.replace(one, noise=0.0) for one in FEATURES))

    assert {decide(known, runs).status for runs in stacks} == {Status.PASS}
    assert {decide(known, runs, exact).status for runs in stacks} == {Status.FAIL}


def test_many_groups_without_signal_are_a_fault(references, rng, make_curve):
    known = [with_groups(run, rng) for run in references]
    decision = decide(known, [with_groups(make_curve(rng), rng, more=0.25) for _ in range(3)])

    assert decision.status is Status.FAIL
    assert decision.statistic.name.startswith("zero_variance_groups")


def test_stopping_at_an_alarm_saves_steps_and_is_not_truncation(references, rng, make_curve):
    runs = [make_curve(rng, "flat") for _ in range(3)]
    stopped = [{name: values[:24] for name, values in run.items()} for run in runs]

    whole, early = decide(references, runs), decide(references, stopped)

    assert whole.status is early.status is Status.FAIL
    assert early.runs_cost <= 0.6 * early.runs_full


def test_runs_that_are_handed_in_together_are_judged_together(references, make_curve):
    """Each lies 3 between-run standard deviations off, which one run alone may."""
    rng = np.random.default_rng(9)
    usual = float(np.mean([run["grad_norm"] for run in references]))

    def shifted():
        run = make_curve(rng)
        factor = 1.17 * usual / float(np.mean(run["grad_norm"]))
        return {**run, "grad_norm": [factor * value for value in run["grad_norm"]]}

    runs = [shifted() for _ in range(3)]

    assert decide(references, runs[:1]).status is Status.PASS
    decision = decide(references, runs)
    assert decision.status is Status.FAIL
    assert decision.statistic.name.startswith("grad_norm")
    assert "grad_norm" in decide(references, runs[:2]).reasons[0]


def test_a_run_that_just_ends_is_truncated(references, rng, make_curve):
    short = {name: values[:50] for name, values in make_curve(rng).items()}

    decision = decide(references, [short])

    assert decision.status is Status.FAIL
    assert "ended after 50 of 60 steps" in decision.reasons[0]


@pytest.mark.parametrize(("kind", "stops_at"), [("flat", 24), ("stuck", 10), ("healthy", 60)])
def test_a_running_training_is_told_when_to_stop(references, make_curve, kind, stops_at):
    run = make_curve(np.random.default_rng(1), kind)
    for steps in range(1, 61):
        so_far = {name: values[:steps] for name, values in run.items()}
        decision = decide(references, [so_far], running=True)
        if decision.decided_by != "running":
            break

    assert steps == stops_at


def test_early_acceptance_says_what_it_did_not_look_at(references, rng, make_curve):
    good = {name: values[:36] for name, values in make_curve(rng).items()}

    decision = decide(references, [good], Rule(accept_early=True))

    assert decision.status is Status.PASS
    assert "later steps were not judged" in decision.reasons[1]
    assert decision.runs_cost == pytest.approx(0.6)


def test_with_fewer_than_ten_references_it_does_not_decide(references, rng, make_curve):
    decision = decide(references[:9], [make_curve(rng)])

    assert decision.status is Status.INCONCLUSIVE
    assert decision.decided_by == "reference"
    assert "at least 10" in decision.reasons[0]


def test_unusable_references_are_left_out_by_name(references, rng, make_curve):
    references[3]["reward"][5] = math.nan
    references[7]["reward"] = references[7]["reward"][:40]

    decision = decide(references, [make_curve(rng)])

    assert decision.status is Status.PASS
    assert "reference run 4 is left out: its reward is not finite" in decision.notes
    assert any(note.startswith("reference run 8 is left out") for note in decision.notes)


def test_references_without_a_core_series_do_not_decide(references, rng, make_curve):
    for run in references:
        del run["grad_norm"]

    decision = decide(references, [make_curve(rng)])

    assert decision.status is Status.INCONCLUSIVE
    assert decision.decided_by == "reference"
    assert "do not have grad_norm" in decision.reasons[0]


def test_series_that_all_references_lack_are_named_with_the_faults_that_may_pass(references, rng, make_curve):
    run = make_curve(rng)
    for one in (*references, run):
        del one["clip_fraction"]

    decision = decide(references, [run])

    assert decision.status is Status.PASS
    assert any(
        note.startswith("the reference runs have no clip_fraction: faults in the") for note in decision.notes
    )
    # `mismatch` shows the same as `probs_difference`.
    assert not any("probs_difference" in note for note in decision.notes)


def test_damaged_references_cost_power_and_the_decision_says_how_much(references, rng, make_curve):
    for run in references[10:]:
        run["entropy"][0] = math.nan

    notes = decide(references, [make_curve(rng)]).notes
    loss = next(note for note in notes if "reference runs are left" in note)

    assert loss.startswith("10 of 20 reference runs are left")
    after, before = (float(number) for number in re.findall(r"by ([0-9.]+)", loss))
    # Documented with `Rule.least_references`, from simulations.
    assert after == pytest.approx(7, abs=1)
    assert before == pytest.approx(5, abs=0.7)
    assert not any("are left" in note for note in decide(references[:10], [make_curve(rng)]).notes)


def test_references_that_do_not_learn_are_refused(rng, make_curve):
    flat = [{**make_curve(rng), "reward": make_curve(rng, "declines")["reward"]} for _ in range(12)]

    assert "does not rise" in decide(flat, [make_curve(rng)]).reasons[0]


@pytest.mark.parametrize("series", ["reward", *(feature.name for feature in FEATURES)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("accept_early", [False, True])
def test_a_value_that_is_not_finite_never_passes(references, rng, make_curve, series, value, accept_early):
    run = make_curve(rng)
    for one in (*references, run):
        one.setdefault(series, list(one["clip_fraction"]))
    for step in (0, len(run[series]) // 2, len(run[series]) - 1):
        broken = {**run, series: [*run[series][:step], value, *run[series][step + 1 :]]}
        decision = decide(references, [broken], Rule(accept_early=accept_early))
        assert decision.status is Status.FAIL, (step, decision.reasons)
        assert series in decision.reasons[0] or "rollout and trainer disagree" in decision.reasons[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_run_that_the_rule_did_not_need_is_judged_if_it_is_there(references, rng, make_curve, value):
    runs = [make_curve(rng) for _ in range(3)]
    assert decide(references, runs).runs_used == 1
    without = [*runs[:2], {name: line for name, line in runs[2].items() if name != "entropy"}]
    rejected = decide(references, without)
    runs[1]["grad_norm"][-1] = value

    failed = decide(references, runs)

    assert (failed.status, failed.decided_by) == (Status.FAIL, "gate")
    assert failed.reasons[0].startswith(f"Run 2: grad_norm is {value} at step ")
    assert rejected.status is Status.INCONCLUSIVE
    assert rejected.reasons[0].startswith("Candidate run 3 has no complete series for entropy")


def test_a_later_step_of_a_run_that_an_early_look_suspects_is_judged(references, rng, make_curve):
    suspected = make_curve(rng)
    suspected["grad_norm"] = [2 * value for value in suspected["grad_norm"]]
    suspected["entropy"][-1] = math.nan

    decision = decide(references, [suspected, make_curve(rng), make_curve(rng)])

    assert decision.status is Status.FAIL
    assert "entropy is nan" in decision.reasons[0]


def test_a_reference_with_one_bad_value_does_not_remove_its_statistic(references, rng, make_curve):
    references[3]["grad_norm"][5] = math.nan
    del references[4]["entropy"]
    runs = [make_curve(rng) for _ in range(3)]
    for run in runs:
        run["grad_norm"] = [2 * value for value in run["grad_norm"]]

    decision = decide(references, runs)

    assert decision.status is Status.FAIL
    assert decision.statistic.name.startswith("grad_norm")
    assert "reference run 4 is left out: its grad_norm is not finite" in decision.notes
    assert "reference run 5 is left out: it has no entropy" in decision.notes


def test_a_run_without_a_series_of_the_references_is_inconclusive(references, rng, make_curve):
    runs = [make_curve(rng) for _ in range(3)]
    for run in runs:
        del run["grad_norm"]

    decision = decide(references, runs)

    assert decision.status is Status.INCONCLUSIVE
    assert decision.decided_by == "input"
    assert "no complete series for grad_norm" in decision.reasons[0]
    assert decide(references, [{"loss": [1.0]}]).decided_by == "input"
    assert decide(references, []).runs_wanted == 1


def test_too_wide_references_are_inconclusive_not_green(rng, make_curve):
    wide = []
    for number in range(12):
        run = make_curve(rng)
        run["reward"] = [0.15 + (value - 0.15) * (0.2 + 0.15 * number) for value in run["reward"]]
        wide.append(run)

    decision = decide(wide, [make_curve(rng) for _ in range(3)])

    assert decision.status is Status.INCONCLUSIVE
    assert decision.decided_by == "non-inferiority"


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
runs = st.dictionaries(
    st.sampled_from(
        ["reward", "grad_norm", "entropy", "mismatch", "clip_fraction", "zero_variance_groups", "x"]
    ),
    st.lists(numbers, max_size=70),
    max_size=5,
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(candidates=st.lists(runs, max_size=4))
def test_any_candidate_gets_a_decision_that_can_be_stored(references, candidates):
    decision = decide(references, candidates)

    assert decision.status in (Status.PASS, Status.FAIL, Status.INCONCLUSIVE)
    assert decision.reasons
    canonical_json(to_json(decision))


@settings(max_examples=60, deadline=None)
@given(
    found=st.lists(
        st.fixed_dictionaries({"reward": st.lists(numbers, min_size=18, max_size=20)}),
        min_size=10,
        max_size=14,
    )
)
def test_any_reference_gets_a_decision(found):
    canonical_json(to_json(decide(found, found[:3])))


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_order_of_the_references_does_not_matter(references, data, make_curve):
    candidates = [make_curve(np.random.default_rng(3), "slower") for _ in range(3)]
    shuffled = data.draw(st.permutations(references))

    assert decide(shuffled, candidates) == decide(references, candidates)


def test_every_look_of_a_decision_can_be_read_back(references, rng, make_curve):
    decision = decide(references, [make_curve(rng, "slower") for _ in range(3)])

    counts = Counter(look.purpose for look in decision.looks)
    assert counts["screen"] >= 1
    assert counts["confirm"] >= 1
    assert decision.looks[-1].alarm
    assert read_shape(Decision, json_object(decision)).looks[-1].statistic.name == decision.statistic.name
