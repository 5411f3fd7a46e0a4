"""Dynamic micro-batches of several ranks: how many there must be, and how ranks meet in collectives."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.numerics.update.rank_batches import (
    ENDED,
    NOT_A_ROW,
    RANK_ROWS,
    REFUSED,
    WAITS,
    Group,
    RankRows,
    run_ranks,
    wrong_ranks,
)

SPLIT = next(one for one in RANK_ROWS if one.name == "split")
THREE = [(rank, row, row, row) for rank in (0, 1) for row in range(3)]


class Number:
    """A tensor with one number, as far as collectives need it."""

    shape = (1,)
    device = SimpleNamespace(type="npu")

    def __init__(self, value: int) -> None:
        self.value = value

    def clone(self) -> Number:
        return Number(self.value)

    def copy_(self, other: Number) -> None:
        self.value = other.value


def stack(numbers):
    values = [one.value for one in numbers]
    return SimpleNamespace(
        amax=lambda _: Number(max(values)),
        amin=lambda _: Number(min(values)),
        sum=lambda _: Number(sum(values)),
    )


@pytest.fixture
def torch():
    operations = SimpleNamespace(SUM="sum", MAX="max", MIN="min")
    return SimpleNamespace(
        distributed=SimpleNamespace(ReduceOp=operations, all_reduce=None), stack=stack, operations=operations
    )


def test_the_number_of_micro_batches_is_the_smallest_that_every_rank_can_make():
    found = {one.name: [one.micro_batches(keeps_limit=keeps) for keeps in (True, False)] for one in RANK_ROWS}
    assert found == {
        "few": [1, 1],
        "full": [2, 2],
        "longer": [4, 4],
        "split": [3, 2],
        "other-splits": [5, 3],
        "longest": [3, 3],
        "impossible": [0, 2],
    }
    assert RankRows(name="", lengths=((30, 1),), limit=30).micro_batches(keeps_limit=True) == 2


def test_ranks_get_what_all_of_them_pass_to_a_collective(torch):
    def rank(value):
        def run():
            number = Number(value)
            torch.distributed.all_reduce(number, op="max")
            total = Number(number.value + value)
            torch.distributed.all_reduce(total)
            torch.distributed.all_reduce(number, op="min")
            return number.value, total.value

        return run

    assert run_ranks(torch, [rank(2), rank(5)], None) == [(5, 17), (5, 17)]


def test_a_rank_that_waits_for_one_that_ended_is_not_mistaken_for_an_end(torch):
    def waits():
        torch.distributed.all_reduce(Number(1))
        torch.distributed.all_reduce(Number(1))

    def ends():
        torch.distributed.all_reduce(Number(1))
        return "end"

    found = run_ranks(torch, [waits, ends], None)
    assert found[1] == "end"
    assert "waits for other ranks" in str(found[0])


def test_ranks_that_meet_in_different_collectives_or_forever_wait(torch):
    def endless():
        while True:
            torch.distributed.all_reduce(Number(1))

    maximum = [lambda op=op: torch.distributed.all_reduce(Number(1), op=op) for op in ("max", "min")]
    for ranks in ([endless, endless], maximum):
        assert all("waits" in str(one) for one in run_ranks(torch, ranks, None))


@pytest.mark.parametrize(("device", "passes_group"), [("npu", False), ("cpu", True)])
def test_a_collective_in_another_group_or_on_another_device_is_refused(torch, device, passes_group):
    group = Group(device=device)

    def rank():
        torch.distributed.all_reduce(Number(1), group=group if passes_group else None)

    assert [type(one) for one in run_ranks(torch, [rank, rank], group)] == [RuntimeError] * 2


def wrong(rows, ends=(ENDED, ENDED), *, case=SPLIT, keeps_limit=True):
    found = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return wrong_ranks(case, np.array(ends), found, keeps_limit=keeps_limit)


def test_one_row_in_each_micro_batch_is_right_where_two_exceed_the_limit():
    assert wrong(THREE) == ""
    two = [(rank, min(row, 1), row, row) for rank in (0, 1) for row in range(3)]
    assert "micro-batches of [20, 40] tokens; 3 of up to 30 are needed" in wrong(two)
    assert wrong(two, keeps_limit=False) == ""
    assert "rank 1 of 2 has micro-batches of [20, 20, 20]" in wrong(THREE, keeps_limit=False)


@pytest.mark.parametrize(
    "row",
    [(1, 2, 1, 2), (1, 2, 2, 1), (1, 2, NOT_A_ROW, 2), (1, 2, 1, 1)],
    ids=["twice", "listed", "none", "both"],
)
def test_rows_that_are_missing_or_listed_wrongly_are_told(row):
    assert "rank 2 of 2 has rows" in wrong([*THREE[:-1], row])


def test_how_a_rank_ends_is_compared():
    assert "rank 2 of 2 waits for a rank that has ended" in wrong(THREE[:3], (ENDED, WAITS))
    assert "raises an exception; 3 micro-batches are possible" in wrong(THREE[3:], (REFUSED, ENDED))
    impossible = RANK_ROWS[-1]
    assert wrong([], (REFUSED, REFUSED), case=impossible) == ""
    found = wrong(THREE[:3], (ENDED, REFUSED), case=impossible)
    assert "rank 1 of 2 makes micro-batches; no number of micro-batches are possible" in found
