"""Tokens to the ranks of their experts and back (MC2), for inference with expert parallelism.

Sources: torch_npu-npu_moe_distribute_dispatch.md, ..._dispatch_v2.md, ..._combine.md and ..._combine_v2.md of
op-plugin, the shapes of results in its sources, and what its tests expect. Rows and weights beyond those that
arrived are 0 here; on a device they are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.sim.collectives.exchange import Exchange
from harness.devices.sim.references.precision import refuse, wide
from harness.devices.sim.references.quantization import npu_dynamic_quant

_DYNAMIC = 2
_ALGORITHMS = ("", "fullmesh", "fullmesh_v1", "fullmesh_v2", "hierarchy")
_RANKS_OF_A_SERVER = 8
_ASSISTANCE = 128
_Dispatched = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Placement:
    """Where experts are: the first `shared_ranks` ranks have shared ones, the others the same number each.

    Errors: RuntimeError where the experts cannot be divided so.
    """

    ranks: int
    rank: int
    experts: int
    shared: int
    shared_ranks: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks or self.experts % (self.ranks - self.shared_ranks):
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks} with {self.experts} experts, of which {self.shared_ranks} "
                "ranks have none: the kernel divides experts evenly between ranks"
            )

    @property
    def experts_of_a_rank(self) -> int:
        """Experts of each rank without shared experts."""
        return self.experts // (self.ranks - self.shared_ranks)

    @property
    def own_experts(self) -> int:
        """Experts of this rank."""
        return 1 if self.rank < self.shared_ranks else self.experts_of_a_rank

    def largest_rows(self, global_bs: int, choices: int) -> int:
        """How many rows can arrive at this rank."""
        if self.rank >= self.shared_ranks:
            return global_bs * min(self.experts_of_a_rank, choices)
        copies = self.shared_ranks // self.shared
        return global_bs // self.ranks * -(-self.ranks // copies)


@dataclass(frozen=True)
class Entries:
    """What this rank sends, ordered by rank, its expert, and token.

    choices: column of expert_ids; behind them, one for each shared expert. factors: row of the experts'
    scales. counts (ranks, largest number of experts of a rank).
    """

    tokens: torch.Tensor
    choices: torch.Tensor
    factors: torch.Tensor
    counts: torch.Tensor

    @property
    def sent(self) -> list[int]:
        """Rows for each rank."""
        found: list[int] = self.counts.sum(1).tolist()
        return found


def entries_of(expert_ids: torch.Tensor, mask: torch.Tensor | None, placement: Placement) -> Entries:
    """What a rank sends for these experts (tokens, choices); mask: as `_active`. Ids of no rank stay here."""
    tokens, choices = expert_ids.shape
    active = _active(mask, tokens, choices)
    if bool((expert_ids[active] < 0).any()):
        raise RuntimeError("an expert's number is negative: the kernel would write outside its memory")
    chosen = (active & (expert_ids < placement.experts)).nonzero()
    ids = expert_ids[chosen[:, 0], chosen[:, 1]].long()
    first = placement.shared if placement.shared_ranks else 0
    parts = [
        torch.stack(
            (
                placement.shared_ranks + ids // placement.experts_of_a_rank,
                *(ids % placement.experts_of_a_rank, *chosen.T, first + ids),
            )
        )
    ]
    for shared in range(first):
        copies = placement.shared_ranks // placement.shared
        rows = active.any(1).nonzero()[:, 0]
        target = torch.full_like(rows, shared * copies + placement.rank % copies)
        fixed = (torch.full_like(rows, value) for value in (choices + shared, shared))
        choice, factor = fixed
        parts.append(torch.stack((target, torch.zeros_like(rows), rows, choice, factor)))
    ranks, slots, rows, columns, factors = torch.cat(parts, 1)
    width = placement.experts_of_a_rank
    order = ((ranks * width + slots) * tokens + rows).argsort(stable=True)
    counts = torch.bincount(ranks * width + slots, minlength=placement.ranks * width)
    rows, columns, factors = (one[order] for one in (rows, columns, factors))
    return Entries(rows, columns, factors, counts.view(placement.ranks, width))


def _active(mask: torch.Tensor | None, tokens: int, choices: int) -> torch.Tensor:
    """Which choices take part, from a mask of tokens or of choices."""
    if mask is None:
        return torch.ones(tokens, choices, dtype=torch.bool)
    if mask.dim() == 1 and bool((mask[1:] & ~mask[:-1]).any()):
        raise NotImplementedError("x_active_mask with a token after one that takes no part: not defined")
    return mask.view(tokens, -1).expand(tokens, choices)


class ExpertCollectives:
    """The kernels, on host tensors."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        """Operator name in namespace `npu` -> its kernel."""
        return {
            "npu_moe_distribute_dispatch": self.dispatch,
            "npu_moe_distribute_dispatch_v2": self.dispatch_with_assistance,
            "npu_moe_distribute_combine": self.combine,
            "npu_moe_distribute_combine_v2": self.combine,
            "_npu_distribute_barrier": self.barrier,
        }

    def dispatch(self, x: torch.Tensor, expert_ids: torch.Tensor, *args: Any, **kwargs: Any) -> _Dispatched:
        """As `dispatch_with_assistance`; the third result numbers the tokens that go to the same expert."""
        found, entries, _ = self._dispatched("npu_moe_distribute_dispatch", x, expert_ids, *args, **kwargs)
        numbers = torch.zeros(expert_ids.shape, dtype=torch.int32)
        places = torch.arange(len(entries.tokens)) - _starts(entries.counts.flatten()).repeat_interleave(
            entries.counts.flatten()
        )
        own = entries.choices < expert_ids.shape[1]
        numbers[entries.tokens[own], entries.choices[own]] = places[own].to(torch.int32)
        return *found[:2], numbers.flatten(), *found[2:]

    def dispatch_with_assistance(
        self, x: torch.Tensor, expert_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> _Dispatched:
        """Rows of tokens (rows, h) that arrive for this rank's experts, ordered by expert, rank and token.

        Then, with dynamic quantisation, the scales of these rows; for each row rank, token and choice; the
        number of rows of each expert; the cumulative sum of rows by expert and rank; of tensor parallelism,
        of which there is none; and the weights of these rows where expert_scales are given.
        """
        found, _, origins = self._dispatched("npu_moe_distribute_dispatch_v2", x, expert_ids, *args, **kwargs)
        assistance = torch.zeros(max(expert_ids.numel(), found[0].shape[0] * _ASSISTANCE), dtype=torch.int32)
        assistance[: origins.numel()] = origins.flatten()
        return *found[:2], assistance, *found[2:]

    def _dispatched(
        self,
        operator: str,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        group_ep: str,
        ep_world_size: int,
        ep_rank_id: int,
        moe_expert_num: int,
        *,
        scales: torch.Tensor | None = None,
        x_active_mask: torch.Tensor | None = None,
        expert_scales: torch.Tensor | None = None,
        tp_world_size: int = 0,
        shared_expert_num: int = 1,
        shared_expert_rank_num: int = 0,
        quant_mode: int = 0,
        global_bs: int = 0,
        expert_token_nums_type: int = 1,
        **others: object,
    ) -> tuple[_Dispatched, Entries, torch.Tensor]:
        """The results of both versions without their third, what was sent, and (rank, token, choice)."""
        self._refuse(operator, group_ep, ep_world_size, tp_world_size, others)
        refuse(
            operator,
            **{
                f"quant_mode {quant_mode}": quant_mode not in {0, _DYNAMIC},
                f"{x.dtype}": x.dtype is torch.int32,
            },
            **{"scales but no quantisation": scales is not None and quant_mode != _DYNAMIC},
        )
        placement = Placement(
            ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num, shared_expert_rank_num
        )
        entries = entries_of(expert_ids, x_active_mask, placement)
        rows, row_scales = wide(x)[entries.tokens], torch.zeros(len(entries.tokens))
        if quant_mode == _DYNAMIC and len(rows):
            rows, row_scales = npu_dynamic_quant(rows if scales is None else rows * scales[entries.factors])
        weights = torch.zeros_like(row_scales) if expert_scales is None else _weights(expert_scales, entries)
        columns = (row_scales, weights, torch.full_like(weights, ep_rank_id), entries.tokens, entries.choices)
        sent = torch.cat((rows.float(), *(one.float()[:, None] for one in columns)), 1)
        arrived, counts = self._arrived(group_ep, sent, entries, placement)
        global_bs = global_bs or len(x) * ep_world_size
        largest = placement.largest_rows(global_bs, expert_ids.shape[1])
        if len(arrived) > largest:
            raise RuntimeError(
                f"{operator}: {len(arrived)} tokens arrive at rank {ep_rank_id}, which has memory for "
                f"{largest} (global_bs {global_bs}): the kernel would write outside"
            )
        # What the way back needs with weights of experts: for each server, numbers and places of rows.
        further = 2 * global_bs * expert_ids.shape[1] * (ep_world_size // _RANKS_OF_A_SERVER)
        cumulative = counts.T.flatten().cumsum(0).to(torch.int32)
        scale, weight, *origins = arrived[:, x.shape[1] :].T
        found = (
            _padded(arrived[:, : x.shape[1]].to(torch.int8 if quant_mode else x.dtype), largest),
            _padded(scale, largest),
            counts.sum(0) if expert_token_nums_type else counts.sum(0).cumsum(0),
            cumulative if expert_scales is None else _padded(cumulative, len(cumulative) + further),
            torch.full((tp_world_size,), len(arrived), dtype=torch.int32),
            _padded(weight, largest),
        )
        return found, entries, torch.stack(origins, 1).to(torch.int32)

    def _arrived(
        self, hcom: str, sent: torch.Tensor, entries: Entries, placement: Placement
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows for this rank's experts, ordered by expert, rank and token; counts (ranks, experts)."""
        one_each = [1] * placement.ranks
        received = self._exchange.all_to_all(hcom, entries.counts, one_each, one_each).long()
        counts = received[:, : placement.own_experts]
        rows = self._exchange.all_to_all(hcom, sent, entries.sent, counts.sum(1).tolist())
        return rows[_by_column(counts)], counts

    def combine(
        self,
        expand_x: torch.Tensor,
        expert_ids: torch.Tensor,
        assist_info_for_combine: torch.Tensor,  # noqa: ARG002 - expert_ids and counts have the same
        ep_send_counts: torch.Tensor,
        expert_scales: torch.Tensor,
        group_ep: str,
        ep_world_size: int,
        ep_rank_id: int,
        moe_expert_num: int,
        *,
        x_active_mask: torch.Tensor | None = None,
        shared_expert_x: torch.Tensor | None = None,
        ori_x: torch.Tensor | None = None,
        tp_world_size: int = 0,
        shared_expert_num: int = 1,
        shared_expert_rank_num: int = 0,
        zero_expert_num: int = 0,
        global_bs: int = 0,  # noqa: ARG002 - only the way there needs memory for it
        **others: object,
    ) -> torch.Tensor:
        """Each token's sum (tokens, h) of its experts' rows times their weights, and of its shared experts'.

        Numbers behind those of the experts are of experts that compute nothing: `zero_expert_num` give 0,
        `copy_expert_num` the token in ori_x.
        """
        operator = "npu_moe_distribute_combine"
        self._refuse(operator, group_ep, ep_world_size, tp_world_size, others)
        placement = Placement(
            ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num, shared_expert_rank_num
        )
        entries = entries_of(expert_ids, x_active_mask, placement)
        cumulative = ep_send_counts[: ep_world_size * placement.own_experts].long()
        counts = cumulative.diff(prepend=cumulative.new_zeros(1)).view(-1, ep_world_size)
        order = _by_column(counts)
        arrived = self._exchange.all_to_all(
            group_ep, wide(expand_x)[: len(order)][order], counts.sum(0).tolist(), entries.sent
        )
        total = torch.zeros(len(expert_ids), expand_x.shape[1], dtype=torch.float64)
        weights = _weights(expert_scales, entries).double()[:, None]
        total.index_add_(0, entries.tokens, arrived.double() * weights)
        if shared_expert_x is not None:
            total += shared_expert_x.reshape(total.shape).double()
        copied = (
            _active(x_active_mask, *expert_ids.shape) & (expert_ids >= moe_expert_num + zero_expert_num)
        ).nonzero()
        if len(copied):
            if ori_x is None:
                raise RuntimeError(f"{operator}: experts that copy their token need it in ori_x")
            tokens, choices = copied.T
            total.index_add_(
                0, tokens, ori_x[tokens].double() * expert_scales[tokens, choices, None].double()
            )
        return total.to(expand_x.dtype)

    def barrier(
        self,
        x_ref: torch.Tensor,
        group: str,
        world_size: int,
        *,
        time_out: torch.Tensor | None = None,  # noqa: ARG002 - HCCL's own time applies
        elastic_info: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x_ref, after all ranks have come here."""
        refuse("_npu_distribute_barrier", elastic_info=elastic_info is not None)
        self._exchange.all_gathered(group, torch.zeros(1), world_size)
        return x_ref

    def _refuse(
        self, operator: str, hcom: str, ranks: int, tp_world_size: int, others: Mapping[str, object]
    ) -> None:
        if (size := self._exchange.size(hcom)) != ranks:
            raise RuntimeError(
                f"{operator}: ep_world_size is {ranks}, but communicator {hcom!r} has {size} ranks"
            )
        ignored = {
            "expand_scales",
            "group_tp",
            "tp_rank_id",
            "tp_send_counts",
            "zero_expert_num",
            "copy_expert_num",
            "comm_alg",
        }
        given = {
            name: value is not None and value not in (0, "")
            for name, value in others.items()
            if name not in ignored
        }
        algorithm = others.get("comm_alg", "")
        refuse(
            operator,
            **{
                f"comm_alg {algorithm}": algorithm not in _ALGORITHMS,
                "tensor parallelism": tp_world_size > 1,
            },
            **given,
        )


def _weights(expert_scales: torch.Tensor, entries: Entries) -> torch.Tensor:
    """The weight of each entry; 1 for shared experts."""
    ones = torch.ones(len(expert_scales), int(entries.choices.max()) + 1 if len(entries.choices) else 1)
    ones[:, : expert_scales.shape[1]] = expert_scales[:, : ones.shape[1]]
    return ones[entries.tokens, entries.choices]


def _by_column(counts: torch.Tensor) -> torch.Tensor:
    """For blocks of rows (a, b), ordered by a, the rows ordered by b."""
    columns = torch.arange(counts.shape[1]).repeat(counts.shape[0])
    return columns.repeat_interleave(counts.flatten()).argsort(stable=True)


def _starts(counts: torch.Tensor) -> torch.Tensor:
    return counts.cumsum(0) - counts


def _padded(rows: torch.Tensor, number: int) -> torch.Tensor:
    filled = rows.new_zeros(number, *rows.shape[1:])
    filled[: len(rows)] = rows
    return filled
