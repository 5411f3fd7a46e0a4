"""Matrix products of experts with the exchange of their tokens in one kernel (MC2), for training.

Sources: torch_npu-npu_alltoallv_gmm.md and torch_npu-npu_gmm_alltoallv.md of op-plugin, and what its tests
expect. Counts (ranks * experts of a rank) are ordered by rank, then by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from harness.devices.sim.collectives.exchange import Exchange
from harness.devices.sim.references.precision import refuse, wide


class GroupedMatmulCollectives:
    """The kernels, on host tensors."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        """Operator name in namespace `npu` -> its kernel."""
        return {
            "npu_alltoallv_gmm": self.exchanged_product,
            "npu_gmm_alltoallv": self.product_exchanged,
        }

    def exchanged_product(
        self,
        gmm_x: torch.Tensor,
        gmm_weight: torch.Tensor,
        hcom: str,
        ep_world_size: int,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        mm_x: torch.Tensor | None = None,
        mm_weight: torch.Tensor | None = None,
        trans_gmm_weight: bool = False,
        trans_mm_weight: bool = False,
        permute_out_flag: bool = False,
        comm_mode: str | None = None,  # noqa: ARG002 - how the numbers travel
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Tokens that arrive here times the weights of their experts, mm_x @ mm_weight, and these tokens.

        gmm_x (tokens, h) is ordered by the experts of all ranks; what arrives is ordered by this rank's
        experts, then by rank. What was not asked for is None.
        """
        refuse("npu_alltoallv_gmm", **{name: value is not None for name, value in others.items()})
        arrived = self._exchange.all_to_all(
            hcom, wide(gmm_x), _by_rank(send_counts, ep_world_size), _by_rank(recv_counts, ep_world_size)
        )
        by_expert = torch.cat([arrived[rows] for rows in _rows_of_experts(recv_counts, ep_world_size)])
        counts = torch.tensor(recv_counts).view(ep_world_size, -1).sum(0)
        product = _products(by_expert, counts, gmm_weight, trans_gmm_weight)
        shared = _shared_product(mm_x, mm_weight, trans_mm_weight)
        return product.to(gmm_x.dtype), shared, by_expert.to(gmm_x.dtype) if permute_out_flag else None

    def product_exchanged(
        self,
        gmm_x: torch.Tensor,
        gmm_weight: torch.Tensor,
        hcom: str,
        ep_world_size: int,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        *,
        mm_x: torch.Tensor | None = None,
        mm_weight: torch.Tensor | None = None,
        trans_gmm_weight: bool = False,
        trans_mm_weight: bool = False,
        comm_mode: str | None = None,  # noqa: ARG002
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The way back: tokens by this rank's experts, times their weights, to the ranks they are of."""
        refuse("npu_gmm_alltoallv", **{name: value is not None for name, value in others.items()})
        counts = torch.tensor(send_counts).view(ep_world_size, -1).sum(0)
        product = _products(wide(gmm_x), counts, gmm_weight, trans_gmm_weight)
        by_rank = torch.empty_like(product)
        by_rank[torch.cat(_rows_of_experts(send_counts, ep_world_size))] = product
        arrived = self._exchange.all_to_all(
            hcom, by_rank, _by_rank(send_counts, ep_world_size), _by_rank(recv_counts, ep_world_size)
        )
        return arrived.to(gmm_x.dtype), _shared_product(mm_x, mm_weight, trans_mm_weight)


def _by_rank(counts: Sequence[int], ranks: int) -> list[int]:
    found: list[int] = torch.tensor(counts).view(ranks, -1).sum(1).tolist()
    return found


def _rows_of_experts(counts: Sequence[int], ranks: int) -> list[torch.Tensor]:
    """The rows (ordered by rank, then by expert) of each expert and rank, ordered by expert, then by rank."""
    blocks = torch.arange(sum(counts)).split(list(counts))
    experts = len(counts) // ranks
    return [blocks[rank * experts + expert] for expert in range(experts) for rank in range(ranks)]


def _products(
    tokens: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor, transposed: bool
) -> torch.Tensor:
    weights = wide(weight).transpose(1, 2) if transposed else wide(weight)
    groups = tokens.split(counts.tolist())
    return torch.cat([rows @ one for rows, one in zip(groups, weights, strict=True)])


def _shared_product(
    x: torch.Tensor | None, weight: torch.Tensor | None, transposed: bool
) -> torch.Tensor | None:
    if x is None or weight is None:
        return None
    return (wide(x) @ (wide(weight).t() if transposed else wide(weight))).to(x.dtype)
