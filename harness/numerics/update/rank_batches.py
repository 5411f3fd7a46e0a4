"""Dynamic micro-batches of several data-parallel ranks.

All ranks must make the same number of micro-batches, because each one takes part in the collectives of every
forward and backward pass. Here verl's function makes them for the rows of each rank, in one process: a rank
runs until a collective whose result is not known. When all ranks wait for the same one, its result is
computed, and all run again from the start with what is known. So a rank that waits for another one, which
has ended, is seen, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.update.replaced import replaced

MOST_COLLECTIVES = 20
ENDED, REFUSED, WAITS = 0, 1, 2
"""How a rank ended: with micro-batches, with an exception, or it waits for ranks that ended."""

NOT_A_ROW = -1


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The rows of each rank by their numbers of tokens, and the largest number of tokens of a micro-batch."""

    name: str
    lengths: tuple[tuple[int, ...], ...]
    limit: int

    def micro_batches(self, *, keeps_limit: bool) -> int:
        """The smallest number of micro-batches that every rank can make; 0 if there is none, so that all
        ranks must refuse. keeps_limit: whether this release keeps the limit where rows that are not divided
        need more micro-batches than their tokens."""
        least = max(-(-sum(rows) // self.limit) for rows in self.lengths)
        possible = range(least, min(len(rows) for rows in self.lengths) + 1)
        fitting = (
            number
            for number in possible
            if not keeps_limit or all(_fit(rows, number, self.limit) for rows in self.lengths)
        )
        return next(fitting, 0)


RANK_ROWS = (
    RankRows(name="few", lengths=((2, 1, 2), (1, 2, 1)), limit=30),
    RankRows(name="full", lengths=((10, 10, 10, 10), (25, 5, 15, 15)), limit=30),
    RankRows(name="longer", lengths=((5, 5, 5, 5), (28, 27, 28, 26)), limit=30),
    RankRows(name="split", lengths=((20, 20, 20), (10, 10, 10)), limit=30),
    RankRows(name="other-splits", lengths=((9, 9, 9, 2, 1), (16, 16, 16, 16, 16)), limit=30),
    RankRows(name="longest", lengths=((15, 30, 15), (30, 30, 30)), limit=30),
    RankRows(name="impossible", lengths=((20, 20, 20), (30, 10)), limit=30),
)
"""Rows of which a balanced partition keeps the limit if any does, so that how verl searches for one does not
matter. The first partition exceeds the limit on one rank, on the other, or on none."""


def _fit(rows: Sequence[int], number: int, limit: int) -> bool:
    """Whether the rows fit into that many micro-batches, of which none is empty."""

    def tokens(places: Sequence[int]) -> list[int]:
        return [sum(row for row, at in zip(rows, places, strict=True) if at == one) for one in range(number)]

    return any(
        min(sums) > 0 and max(sums) <= limit for sums in map(tokens, product(range(number), repeat=len(rows)))
    )


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group of data-parallel ranks, which are not all processes. device: where its tensors are."""

    device: str


class _WaitingError(Exception):
    """A rank has come to a collective whose result is not known."""

    def __init__(self, operation: Any, tensor: Any) -> None:
        super().__init__("waits for other ranks")
        self.operation, self.tensor = operation, tensor


def run_ranks(torch: Any, ranks: Sequence[Callable[[], Any]], group: Group | None) -> list[Any]:
    """What each rank returns, the exception that it raised, or `_WaitingError`. group: the one of the ranks;
    None for all processes."""
    known: list[Any] = []
    while True:
        ends = [_run_rank(torch, rank, known, group) for rank in ranks]
        waiting = [one for one in ends if isinstance(one, _WaitingError)]
        same = {(str(one.operation), tuple(one.tensor.shape)) for one in waiting}
        if len(waiting) < len(ranks) or len(same) > 1 or len(known) == MOST_COLLECTIVES:
            return ends
        known.append(_reduced(torch, waiting))


def _run_rank(torch: Any, rank: Callable[[], Any], known: Sequence[Any], of_ranks: Group | None) -> Any:
    results = iter(known)

    def all_reduce(
        tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, group: Any = None, **_: Any
    ) -> None:
        if group is not of_ranks or (of_ranks and tensor.device.type != of_ranks.device):
            raise RuntimeError(f"a collective of {tensor} in the group {group}")
        result = next(results, None)
        if result is None:
            raise _WaitingError(op, tensor.clone())
        tensor.copy_(result)

    with replaced(torch.distributed, "all_reduce", all_reduce):
        try:
            return rank()
        except Exception as raised:  # noqa: BLE001 - whatever verl raises is how the rank ended
            return raised


def _reduced(torch: Any, waiting: Sequence[_WaitingError]) -> Any:
    operations = torch.distributed.ReduceOp
    stacked = torch.stack([one.tensor for one in waiting])
    if waiting[0].operation == operations.MAX:
        return stacked.amax(0)
    return stacked.amin(0) if waiting[0].operation == operations.MIN else stacked.sum(0)


def micro_batches_of_ranks(
    torch: Any, prepare: Callable[..., Any], settings: Mapping[str, Any], case: RankRows, device: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How each rank ended, and (rank, micro-batch, row, row as verl lists it) of each row in a micro-batch.

    prepare: verl's function. settings: its other arguments, as the engine passes them. If there is a group
    among them, the ranks are one, and not all processes.
    """
    group = None if settings.get("dp_group") is None else Group(device=device.partition(":")[0])
    passed = {**settings, "dp_group": group}

    def rank(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
        batches, indices = prepare(data=_rows(torch, lengths, case.limit, device), **passed)
        return _listed(batches, indices, lengths)

    found = run_ranks(torch, [partial(rank, lengths) for lengths in case.lengths], group)
    rows: list[tuple[int, int, int, int]] = []
    ends = []
    for number, end in enumerate(found):
        is_waiting = isinstance(end, _WaitingError)
        ends.append(WAITS if is_waiting else REFUSED if isinstance(end, Exception) else ENDED)
        if ends[-1] == ENDED:
            rows += [(number, *row) for row in end]
    return np.array(ends), np.array(rows, dtype=np.int64).reshape(-1, 4)


def _rows(torch: Any, lengths: Sequence[int], limit: int, device: str) -> Any:
    """The rows of a rank; each token is the number of its row."""
    rows = [torch.full((length,), row, device=device) for row, length in enumerate(lengths)]
    tokens = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = import_module("tensordict").TensorDict({"input_ids": tokens}, batch_size=[len(lengths)])
    import_module("verl.utils.tensordict_utils").assign_non_tensor(
        data, use_dynamic_bsz=True, max_token_len_per_gpu=limit, sp_size=1
    )
    return data


def _listed(
    batches: Sequence[Any], indices: Sequence[Sequence[int]], lengths: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(micro-batch, row, row as verl lists it) of each row; `NOT_A_ROW` if its tokens are those of none."""
    found = []
    for number, (batch, listed) in enumerate(zip(batches, indices, strict=True)):
        rows = [row.tolist() for row in batch["input_ids"].unbind()]
        for tokens, index in zip(rows, listed, strict=True):
            row = next((row for row, length in enumerate(lengths) if tokens == [row] * length), NOT_A_ROW)
            found.append((number, row, int(index)))
    return found


def wrong_ranks(
    case: RankRows, ends: NDArray[np.int64], rows: NDArray[np.int64], *, keeps_limit: bool
) -> str:
    """What is wrong with the micro-batches of the ranks, "" if nothing is."""
    number = case.micro_batches(keeps_limit=keeps_limit)
    for rank, (end, lengths) in enumerate(zip(ends.tolist(), case.lengths, strict=True)):
        which = f"rank {rank + 1} of {len(case.lengths)}"
        if end != (ENDED if number else REFUSED):
            what = ("makes micro-batches", "raises an exception", "waits for a rank that has ended")[end]
            return f"{which} {what}; {number or 'no number of'} micro-batches are possible on all ranks"
        own = rows[rows[:, 0] == rank][:, 1:]
        listed = (sorted(own[:, 1].tolist()), sorted(own[:, 2].tolist()))
        if number and (listed != (list(range(len(lengths))),) * 2 or (own[:, 1] != own[:, 2]).any()):
            return f"{which} has rows {own[:, 1].tolist()}, listed as {own[:, 2].tolist()}"
        sums = [sum(lengths[row] for row in own[own[:, 0] == one][:, 1]) for one in np.unique(own[:, 0])]
        if number and (len(sums) != number or (keeps_limit and max(sums) > case.limit)):
            return f"{which} has micro-batches of {sums} tokens; {number} of up to {case.limit} are needed"
    return ""
