import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.matrix.reading.load_matrix import parse_matrix
from harness.plan.covering.covering_set import Universe, cover


@st.composite
def cell_lists(draw):
    axes = {f"a{number}": draw(st.integers(1, 4)) for number in range(draw(st.integers(1, 5)))}
    product = [
        dict(zip(axes, map(str, values), strict=True))
        for values in itertools.product(*(range(size) for size in axes.values()))
    ]
    keep = draw(st.lists(st.booleans(), min_size=len(product), max_size=len(product)))
    cells = [cell for cell, kept in zip(product, keep, strict=True) if kept]
    return cells or product


def tuples(cells, strength):
    return {chosen for cell in cells for chosen in itertools.combinations(sorted(cell.items()), strength)}


@given(cell_lists(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_feasible_tuple_is_held_and_no_cell_is_made_up(cells, strength):
    strength = min(strength, len(cells[0]))
    found = cover(cells, strength)
    chosen = [cells[index] for index in found.indexes]
    assert tuples(chosen, strength) == tuples(cells, strength)
    assert found.tuples == len(tuples(cells, strength))
    assert sum(pick.gained for pick in found.picks) == found.tuples


@given(cell_lists(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_cells_and_axes_changes_nothing(cells, chance):
    shuffled = [dict(sorted(cell.items(), reverse=True)) for cell in cells]
    chance.shuffle(shuffled)
    one = [cells[index] for index in cover(cells, 2).indexes]
    other = [shuffled[index] for index in cover(shuffled, 2).indexes]
    assert one == other


@given(cell_lists(), st.data())
@settings(max_examples=30, deadline=None)
def test_no_chosen_cell_could_be_left_out(cells, data):
    costs = data.draw(st.lists(st.floats(0, 10), min_size=len(cells), max_size=len(cells)))
    indexes = cover(cells, 2, costs=costs).indexes
    whole = tuples([cells[index] for index in indexes], 2)
    for left_out in indexes:
        assert tuples([cells[index] for index in indexes if index != left_out], 2) != whole or not whole


def grid(*sizes):
    return [
        {f"a{axis}": str(value) for axis, value in enumerate(values)}
        for values in itertools.product(*(range(size) for size in sizes))
    ]


def test_what_must_be_there_comes_first_even_if_it_adds_nothing():
    cells = [*grid(3, 3, 3), {"a0": "0"}]
    found = cover(cells, 2, must={27: "a row", 5: "failed last time"})
    assert [(pick.index, pick.why) for pick in found.picks[:2]] == [(27, "a row"), (5, "failed last time")]
    assert found.picks[0].gained == 0


def test_an_earlier_set_stays_when_a_value_is_added():
    before = grid(3, 3, 3, 2)
    earlier = [before[index] for index in cover(before, 2).indexes]
    after = grid(4, 3, 3, 2)
    keep = [index for index, cell in enumerate(after) if cell in earlier]
    kept = [after[index] for index in cover(after, 2, keep=keep).indexes]
    assert all(cell in kept for cell in earlier)
    assert all(cell["a0"] == "3" for cell in kept if cell not in earlier)


def test_cheap_cells_are_taken_before_dear_ones():
    cells = grid(2, 2, 2)
    dear = {index for index, cell in enumerate(cells) if cell["a0"] == "1" and cell["a1"] == "1"}
    costs = [100.0 if index in dear else 1.0 for index in range(len(cells))]
    found = cover(cells, 2, costs=costs)
    assert found.indexes[0] not in dear
    assert len(dear & set(found.indexes)) == 1


def test_cells_that_never_ran_win_ties():
    cells = grid(2, 2)
    assert all(cover(cells, 1, prefer=[index]).indexes[0] == index for index in range(4))


def test_cells_that_lack_axes_hold_the_tuples_they_have():
    cells = [{"a": "1", "b": "1"}, {"a": "1"}, {"b": "2", "c": "1"}]
    found = cover(cells, 2)
    assert sorted(found.indexes) == [0, 2]
    assert found.tuples == 2
    assert Universe(cells, 2).count_covered([0]) == 1


def test_a_strength_beyond_reason_is_refused():
    with pytest.raises(ValueError, match="between 1 and 6"):
        cover(grid(2, 2), 0)


def test_another_process_with_another_hash_seed_chooses_the_same():
    program = (
        "import itertools, json; from harness.plan.covering.covering_set import cover; "
        "cells = [{'a': a, 'b': b, 'c': c} for a, b, c in itertools.product('123', 'xyz', 'pq') if a + c != '1q']; "
        "print(json.dumps(cover(cells, 2).indexes))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(answers) == 1
    assert json.loads(answers.pop())


@st.composite
def matrices(draw):
    """Axes with their values, and forbidden pairs and triples of them."""
    axes = {
        f"a{number}": [f"v{value}" for value in range(draw(st.integers(2, 4)))]
        for number in range(draw(st.integers(2, 4)))
    }
    rules = []
    for _ in range(draw(st.integers(0, 5))):
        names = draw(st.lists(st.sampled_from(sorted(axes)), min_size=2, max_size=3, unique=True))
        rules.append({name: draw(st.sampled_from(axes[name])) for name in names})
    return axes, rules


@given(matrices(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_from_the_file_to_the_rows_no_rule_is_broken_and_no_feasible_pair_missing(drawn, chance):
    axes, rules = drawn
    data = {
        "format": 1,
        "axes": {axis: {"title": axis, "scheme": "name", "source": "s"} for axis in axes},
        "constraints": {
            f"r{number}": {"forbid": rule, "reason": "r", "source": "s"} for number, rule in enumerate(rules)
        },
        "profiles": {"default": {"title": "t", "select": [{"product": axes}]}},
    }
    found = parse_matrix(json.dumps(data)).cells("default").cells
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    feasible = [cell for cell in every if not any(rule.items() <= cell.items() for rule in rules)]
    assert [dict(cell.axes) for cell in found] == feasible
    if not feasible:
        return
    chosen = [feasible[index] for index in cover([cell.axes for cell in found], 2).indexes]
    assert tuples(chosen, 2) == tuples(feasible, 2)
    items = list(data["constraints"].items())
    chance.shuffle(items)
    again = parse_matrix(json.dumps({**data, "constraints": dict(items)})).cells("default").cells
    assert again == found
