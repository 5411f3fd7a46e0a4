import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import cell, check, plan

from harness.outcome import Tier
from harness.plan.cost.task_cost import CostModel, Estimate, TimedExecution, duration, forecast
from harness.plan.cost.task_order import order_tasks
from harness.plan.covering.covering_set import Universe, cover
from harness.plan.covering.time_budget import covering_steps, fit_into_budget, parse_duration
from harness.plan.tasks.planner import restrict_plan

LOSS = check("loss", Tier.NUMERICS, device=True, expected_s=15.0)


def samples(*seconds, host="here", device="sim"):
    return [TimedExecution(check="loss", device=device, host=host, seconds=one) for one in seconds]


def test_before_anything_ran_the_cost_is_a_guess_and_says_so():
    sim, npu = CostModel().estimate(LOSS, "sim"), CostModel().estimate(LOSS, "npu")
    assert (sim.seconds, sim.samples) == (15.0, 0)
    assert npu.seconds > sim.seconds
    assert "guess" in sim.basis
    assert sim.low < sim.seconds < sim.high


def test_history_replaces_the_guess_and_this_kind_of_host_comes_first():
    model = CostModel([*samples(10, 11, 12), *samples(100, 110, 120, host="slow")], host="here")
    assert model.estimate(LOSS, "sim").seconds == 11
    assert "this kind of host" in model.estimate(LOSS, "sim").basis
    few = CostModel([*samples(10), *samples(100, 110, 120, host="slow")], host="here")
    assert few.estimate(LOSS, "sim").seconds == 105


def test_what_ran_on_a_simulated_device_says_nothing_of_a_real_one():
    assert CostModel(samples(10, 10, 10)).estimate(LOSS, "npu").samples == 0


def test_two_executions_that_agree_prove_no_small_spread():
    assert CostModel(samples(10, 10)).estimate(LOSS, "sim").scatter > 1


@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=40))
def test_the_median_lies_in_the_range(seconds):
    one = CostModel(samples(*seconds)).estimate(LOSS, "sim")
    assert one.low <= one.seconds + 1e-9
    assert one.seconds <= one.high + 1e-9


def test_a_forecast_holds_about_two_times_in_three():
    """Executions from a skewed distribution; the sum of 20 more lies within one error as often as it should."""
    chance = random.Random(1)
    inside = 0
    for _ in range(300):
        model = CostModel(samples(*[chance.gauss(20, 4) for _ in range(15)]))
        told = forecast([model.estimate(LOSS, "sim")] * 20)
        inside += abs(sum(chance.gauss(20, 4) for _ in range(20)) - told.seconds) <= told.error
    assert 0.55 <= inside / 300 <= 0.85


def test_a_guess_is_wrong_for_all_its_tasks_alike():
    guess = CostModel().estimate(LOSS, "sim")
    assert math.isclose(forecast([guess] * 9).error, 9 * forecast([guess]).error)
    known = Estimate(check="x", seconds=10, low=9, high=11, samples=10_000, basis="")
    assert forecast([known] * 9).error < 4 * forecast([known]).error
    assert "9 of 9 guessed" in str(forecast([guess] * 9))
    assert "guessed" not in str(forecast([known]))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45min", 2700), ("45 m", 2700), ("1.5h", 5400), ("2d", 172800)]
)
def test_spans_of_time(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "-1h", "8 weeks", "1h30"])
def test_no_spans_of_time(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_durations_for_people():
    assert [duration(seconds) for seconds in (3, 250, 9000)] == ["3 s", "4.17 min", "2.5 h"]


CELLS = [{"a": a, "b": b} for a in "123" for b in "xy"]
ESTIMATE = Estimate(check="loss", seconds=1800.0, low=900, high=2700, samples=5, basis="")


def test_a_budget_takes_what_fits_and_the_next_hour_says_what_it_would_add():
    universe = Universe(CELLS, 2)
    found = cover(CELLS, 2)
    work = [{f"task {number}": ESTIMATE} for number in range(len(CELLS))]
    bought = fit_into_budget(found, covering_steps(found, work), universe, 2 * 1800.0)
    assert (len(bought.taken), bought.covered, bought.tuples) == (2, 2, 6)
    assert (bought.next_hour.cells, bought.next_hour.gained) == (2, 2)
    everything = fit_into_budget(found, covering_steps(found, work), universe, None)
    assert everything.coverage == 1.0
    assert everything.next_hour.cells == 0


def test_a_task_that_cells_share_is_paid_once():
    found = cover(CELLS, 2)
    priced = covering_steps(found, [{"shared": ESTIMATE} for _ in CELLS])
    assert [step.seconds for step in priced] == [1800.0, 0, 0, 0, 0, 0]


def test_a_cell_dearer_than_the_budget_leaves_room_for_cheaper_ones():
    found = cover(CELLS, 2)
    dear = found.indexes[0]
    work = [{f"task {number}": ESTIMATE} for number in range(len(CELLS))]
    work[dear] = {f"task {number}": ESTIMATE for number in range(100, 110)}
    bought = fit_into_budget(found, covering_steps(found, work), Universe(CELLS, 2), 5 * 1800.0)
    assert [step.index for step in bought.left] == [dear]
    assert (bought.next_hour.cells, bought.next_hour.gained) == (1, 1)


CHECKS = [
    check("lint"),
    check("resolve", facets=("pins",)),
    check("environment", Tier.BUILD, facets=("versions", "pins"), needs=("resolve",)),
    check("grpo", Tier.CONVERGENCE, facets=("versions", "pins"), needs=("environment",)),
]


def test_tasks_in_order():
    made = plan([cell(), cell(torch="2.12.0"), cell(python="3.10")], CHECKS)
    turns = order_tasks(made)
    tiers = [made.tasks[turn.key].check.tier.rank for turn in turns]
    assert tiers == sorted(tiers)
    # The resolve that two cells share decides more than a lint that one cell has.
    assert turns[0].check == "resolve"
    assert turns[0].decides > turns[-1].decides
    grpo = next(key for key, task in made.tasks.items() if task.check.name == "grpo")
    assert order_tasks(made, failed_before={grpo})[tiers.index(3)].key == grpo
    assert {turn.key for turn in turns} == set(made.tasks)


def test_cells_with_many_cards_go_first_in_their_tier():
    made = plan([cell(), cell(torch="2.12.0")], CHECKS)
    wide = made.cells[1].id
    environments = [turn.key for turn in order_tasks(made, cards={wide: 16}) if turn.check == "environment"]
    first = next(entry.cell_id for entry in made.entries if entry.key == environments[0])
    assert first == wide


def test_a_check_that_never_fails_decides_little():
    made = plan([cell()], CHECKS)
    turns = {turn.check: turn for turn in order_tasks(made, failure_rate={"lint": 0.01, "resolve": 0.9})}
    assert turns["lint"].decides < turns["resolve"].decides


def test_a_part_of_a_plan_has_the_tasks_of_its_cells():
    made = plan([cell(), cell(torch="2.12.0")], CHECKS)
    part = restrict_plan(made, {made.cells[0].id})
    assert part.cells == made.cells[:1]
    assert set(part.tasks) == {entry.key for entry in part.entries}
    assert set(part.tasks) < set(made.tasks)
