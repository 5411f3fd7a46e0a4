"""The ranks of a sequence-parallel group, one after the other, with arrays in the place of tensors."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from harness.numerics.update.sequence_ranks import SequenceRanks

SIZE = 4


class Array(np.ndarray):
    """An array with what `SequenceRanks` asks of a tensor."""

    def detach(self) -> Array:
        return self

    def clone(self) -> Array:
        return self.copy()

    def copy_(self, other: np.ndarray) -> None:
        self[...] = other


def made(values) -> Array:
    return np.array(values, dtype=np.float64).view(Array)


def ranks() -> SequenceRanks:
    torch = SimpleNamespace(
        no_grad=nullcontext,
        cat=lambda parts, dim=0: np.concatenate(parts, axis=dim).view(Array),
        zeros_like=lambda one: np.zeros_like(one),
    )
    return SequenceRanks(torch, SIZE)


def gathered(group: SequenceRanks, local: Array) -> Array:
    whole = made(np.zeros(SIZE * len(local)))
    group._gather_into(whole, local)
    return whole


def test_each_rank_gathers_what_all_ranks_pass_and_the_first_result_is_returned():
    group, seen = ranks(), {}

    def step(number):
        found = gathered(group, made([group.rank, number]))
        second = gathered(group, made([10 * group.rank]))
        if not group.previews:
            seen[group.rank] = (found.tolist(), second.tolist())
        return found

    assert group.on_each(step)(7).tolist() == [0, 7, 1, 7, 2, 7, 3, 7]
    assert set(seen) == set(range(SIZE))
    assert all(one == ([0, 7, 1, 7, 2, 7, 3, 7], [0, 10, 20, 30]) for one in seen.values())
    assert group.is_first


def test_only_the_first_rank_is_recorded():
    group, first = ranks(), []
    group.on_each(lambda: first.append(group.is_first))()
    assert first == [False] * (SIZE - 1) + [True] + [False] * (SIZE - 1)


@pytest.mark.parametrize(
    ("lengths", "numbers", "message"),
    [
        ((1, 1, 2, 1), (1, 1, 1, 1), "different shapes"),
        ((1, 1, 1, 1), (1, 2, 1, 1), "numbers of collectives"),
    ],
)
def test_ranks_that_do_not_fit_together_raise(lengths, numbers, message):
    group = ranks()

    def step():
        for _ in range(numbers[group.rank]):
            group._gather(
                [made(np.zeros(lengths[group.rank])) for _ in range(SIZE)], made(np.ones(lengths[group.rank]))
            )

    with pytest.raises(RuntimeError, match=message):
        group.on_each(step)()
    assert group.is_first


def test_parts_are_joined_in_the_order_of_the_ranks_once_all_are_there():
    group = ranks()
    parts = [made([[rank, rank]]) for rank in range(SIZE)]
    assert all(group.whole("gradient", parts[rank], rank) is None for rank in (3, 1, 0))
    assert group.whole("gradient", parts[2], 2).tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]]
    assert group.whole("gradient", parts[0], 0) is None


def test_the_gradient_of_the_first_result_goes_to_all_ranks():
    """Each tensor is a pair of its value and its gradient by a parameter of its own."""

    class Tensor:
        is_nested = False

        def __init__(self, value, slopes):
            self.value, self.slopes = value, slopes

        @property
        def requires_grad(self):
            return any(self.slopes)

        def detach(self):
            return Tensor(self.value, [0] * SIZE)

        def __add__(self, other):
            return Tensor(
                self.value + other.value, [a + b for a, b in zip(self.slopes, other.slopes, strict=True)]
            )

        def __radd__(self, other):
            return self if other == 0 else other + self

        def __sub__(self, other):
            return Tensor(
                self.value - other.value, [a - b for a, b in zip(self.slopes, other.slopes, strict=True)]
            )

    group = ranks()

    def step():
        own = Tensor(5.0, [int(rank == group.rank) for rank in range(SIZE)])
        return None, {"loss": own, "rank": group.rank}

    nothing, found = group.on_each(step)()
    assert nothing is None
    assert found["rank"] == 0
    assert (found["loss"].value, found["loss"].slopes) == (5.0, [1] * SIZE)


def test_one_rank_changes_nothing():
    group = SequenceRanks(SimpleNamespace(), 1)
    step, part = object(), object()
    assert group.on_each(step) is step
    assert group.whole("input_ids", part) is part
    with group.active():
        pass
