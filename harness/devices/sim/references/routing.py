"""MoE for inference: selecting experts, sorting tokens by expert, and restoring their order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import refuse, wide
from harness.devices.sim.references.quantization import as_integers

_SOFTMAX, _SIGMOID = 0, 1
_SORT_LAST = 1 << 30
_LARGEST_INT8 = 127


def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k largest values of the softmax of x (..., experts), their experts (int32), row numbers (int32).

    The row number of a token's i-th expert is token + i * tokens. Tokens that are finished get the number of
    experts.
    """
    weights, experts, _ = npu_moe_gating_top_k_softmax_v2(x, k=k, finished=finished)
    rows = torch.arange(weights.numel(), dtype=torch.int32).view(k, -1).t()
    return weights, experts, rows.reshape(weights.shape)


def npu_moe_gating_top_k_softmax_v2(
    x: torch.Tensor,
    *,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The k largest values of the softmax, their experts (int32), and with output_softmax all (float32).

    renorm 1: the softmax of only the k largest x. Tokens that are finished get the number of experts.
    """
    scores = torch.softmax(wide(x), -1)
    experts = largest(wide(x) if renorm else scores, k)
    weights = torch.softmax(wide(x).gather(-1, experts), -1) if renorm else scores.gather(-1, experts)
    if finished is not None:
        experts = experts.masked_fill(finished.reshape(*experts.shape[:-1], 1), x.shape[-1])
    everything = scores if output_softmax and not renorm else scores.new_empty(0)
    return weights.to(x.dtype), experts.to(torch.int32), everything


def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = _SOFTMAX,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights (tokens, k), experts (int32) and, with out_flag, all scores (float32).

    The scores are the softmax (norm_type 0) or the sigmoid (1) of x. `bias` changes which experts are
    selected, but not their weights. Equal scores keep the order of their experts. With group_count > 1, only
    experts of the best k_group groups are selected; group_select_mode 0 ranks groups by their largest score,
    1 by the sum of their two largest. Sigmoid weights, and all with renorm 1, are divided by their sum.
    """
    refuse("npu_moe_gating_top_k", **{name: value is not None for name, value in others.items()})
    scores = torch.softmax(wide(x), -1) if norm_type == _SOFTMAX else torch.sigmoid(wide(x))
    preference = scores if bias is None else scores + wide(bias)
    if group_count > 1:
        preference = _best_groups(preference, k_group, group_count, group_select_mode)
    experts = largest(preference, k)
    weights = scores.gather(-1, experts)
    if renorm == 1 or norm_type == _SIGMOID:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    all_scores = scores if out_flag else scores.new_empty(0)
    return (weights * routed_scaling_factor).to(x.dtype), experts.to(torch.int32), all_scores


def gating_top_k(
    x: torch.Tensor,
    k: int,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
    bias_opt: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`npu_moe_gating_top_k` with the signature of vllm-ascend's own kernel."""
    return npu_moe_gating_top_k(
        x,
        k,
        bias=bias_opt,
        k_group=k_group,
        group_count=group_count,
        group_select_mode=group_select_mode,
        renorm=renorm,
        norm_type=norm_type,
        out_flag=out_flag,
        routed_scaling_factor=routed_scaling_factor,
        eps=eps,
    )


def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,  # noqa: ARG001 - only used in padded mode
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Repeats x (tokens, h) for each of the tokens' experts in expert_idx (tokens, k), sorted by expert.

    The second result (int32) has, for each entry of expert_idx, its row in the first result (row_idx_type 0),
    or, for each row, its entry (1). The third result (int64) has the number of tokens per expert
    (expert_tokens_num_type 1) or their cumulative sum (0). The fourth has the scale of each row: that of its
    token, or with quant_mode 1 that of its dynamic quantisation to int8, after multiplying by the scale of
    its expert. Entries of inactive experts come last, those of experts below the range after those above it,
    and are not counted; their rows and scales are 0 and their numbers -1, as in the golden of op-plugin's
    test_npu_moe_init_routing_v2.py.
    """
    entries, choices = expert_idx.numel(), expert_idx.shape[1]
    refuse(
        "npu_moe_init_routing_v2",
        drop_pad_mode=drop_pad_mode,
        quantisation=quant_mode not in {-1, 1} and (scale is not None or quant_mode > 0),
        offset=offset is not None,
        active_num=active_num not in {-1, 0, entries},
        expert_tokens_num_type=expert_tokens_num_type not in {0, 1},
        **{name: value is not None for name, value in others.items()},
    )
    first, last = active_expert_range or (0, expert_num)
    experts = expert_idx.reshape(-1).long()
    is_active = (experts >= first) & (experts < last)
    order = torch.argsort(torch.where(experts >= first, experts, _SORT_LAST), stable=True)
    active = order[: int(is_active.sum())]
    numbers = order
    if row_idx_type == 0:
        numbers = torch.full_like(order, -1).scatter_(0, active, torch.arange(active.numel()))
    counts = torch.bincount(experts[is_active] - first, minlength=last - first)
    if expert_tokens_num_type == 0:
        counts = counts.cumsum(0)
    tokens = torch.div(active, choices, rounding_mode="floor")
    rows, scales = x[tokens], torch.zeros(tokens.shape)
    if quant_mode == 1:
        smooth = 1.0 if scale is None or not entries else scale.float()[experts[active] - first]
        own = rows.float() * smooth
        scales = own.abs().amax(-1) / _LARGEST_INT8
        rows = torch.round(own / scales[:, None]).to(torch.int8)
    elif scale is not None:
        scales = scale.float()[tokens]
    counted = counts if expert_tokens_num_flag else counts.new_zeros(0)
    return (
        _padded(rows, entries),
        numbers.to(torch.int32),
        counted,
        _padded(scales, entries),
    )


def npu_moe_init_routing_quant(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = 1024,
    expert_capacity: int = 0,
    expert_num: int = 256,
    drop_pad_mode: int = 0,
    expert_tokens_num_mode: int = 0,
    expert_tokens_before_capacity_flag: bool = False,
    quant_mode: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`npu_moe_init_routing_v2`, with quantised rows: by one scale and offset (0), or row by row (1).

    The third result (int32) has the tokens of each expert (expert_tokens_num_mode 2) or their cumulative
    sum (1).
    """
    refuse(
        "npu_moe_init_routing_quant",
        drop_pad_mode=drop_pad_mode,
        expert_tokens_before_capacity_flag=expert_tokens_before_capacity_flag,
        active_num=active_num not in {0, expert_idx.numel()},
        quant_mode=quant_mode not in {0, 1},
    )
    rows, numbers, counts, scales = npu_moe_init_routing_v2(
        x,
        expert_idx,
        scale=scale if quant_mode == 1 else None,
        expert_capacity=expert_capacity,
        expert_num=expert_num,
        expert_tokens_num_type=0 if expert_tokens_num_mode == 1 else 1,
        expert_tokens_num_flag=expert_tokens_num_mode > 0,
        quant_mode=quant_mode if quant_mode == 1 else -1,
    )
    if quant_mode == 0:
        assert scale is not None
        placed = wide(rows) * wide(scale)
        rows = as_integers((placed if offset is None else placed + wide(offset)).round(), torch.int8)
        scales = scales.new_empty(0)
    return rows, numbers, counts.to(torch.int32), counts.new_empty(0, dtype=torch.int32), scales


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The rows, followed by zeros: `count` in all."""
    return torch.cat([rows, rows.new_zeros(count - rows.shape[0], *rows.shape[1:])])


def npu_moe_init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tokens sorted by expert, the row of each entry of row_idx among them, and the sorted experts.

    x is (tokens, h). row_idx and expert_idx are (tokens, k); row_idx has token + i * tokens for the i-th
    expert. At most min(active_num, tokens) * k rows are returned.
    """
    order = torch.argsort(expert_idx.reshape(-1), stable=True)
    entries = row_idx.reshape(-1)[order].long()
    rows = torch.empty_like(entries).scatter_(0, entries, torch.arange(entries.numel()))
    kept = min(active_num, x.shape[0]) * expert_idx.shape[-1]
    experts = expert_idx.reshape(-1)[order].to(torch.int32)
    return x[entries[:kept] % max(1, x.shape[0])], rows.to(torch.int32), experts


def npu_moe_compute_expert_tokens(
    sorted_expert_for_source_row: torch.Tensor, num_expert: int
) -> torch.Tensor:
    """For each expert, how many entries of the sorted list belong to it or to an expert before it."""
    experts = torch.arange(num_expert, dtype=sorted_expert_for_source_row.dtype)
    return torch.searchsorted(sorted_expert_for_source_row, experts, right=True).to(torch.int32)


def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    **others: object,
) -> torch.Tensor:
    """The tokens in their original order: the sum of their experts' rows (+ the expert's bias) times scales.

    expanded_src_to_dst_row has the row of a token's i-th expert at token + i * tokens. drop_pad_mode 1: the
    rows are (experts, capacity, h), and row -1 was dropped and counts as 0 (the golden of op-plugin's
    test_npu_moe_finalize_routing_v2.py).
    """
    refuse(
        "npu_moe_finalize_routing",
        drop_pad_mode=drop_pad_mode not in {None, 0, 1},
        k=others.get("k") not in {None, 1},
    )
    choices = 1 if scales is None else scales.shape[1]
    rows = expanded_src_to_dst_row.view(choices, -1).t().long()
    expanded = wide(expanded_permuted_rows).flatten(0, -2)
    selected = expanded[rows.clamp(min=0)] * (rows >= 0)[..., None] if drop_pad_mode else expanded[rows]
    if bias is not None and export_for_source_row is not None:
        selected = selected + wide(bias)[export_for_source_row.long()]
    if scales is not None:
        selected = selected * wide(scales)[..., None]
    result = selected.sum(1)
    for skip in (skip1, skip2):
        result = result if skip is None else result + wide(skip)
    return result.to(expanded_permuted_rows.dtype)


def largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The positions of the `count` largest scores; among equal scores, the first come first.

    This is the order of a stable descending sort, as in the goldens of op-plugin's tests (numpy.argsort,
    kind="stable"). Sorting all experts takes much longer than selecting, so only those rows are sorted in
    which scores outside equal the last one selected.
    """
    count = min(count, scores.shape[-1])
    values, places = torch.topk(scores, count, dim=-1)
    if not count:
        return places
    by_place = places.argsort(-1)
    order = torch.sort(values.gather(-1, by_place), dim=-1, descending=True, stable=True).indices
    chosen = places.gather(-1, by_place).gather(-1, order)
    # Not-a-number counts as the largest.
    is_open = ((scores >= values[..., -1:]) | scores.isnan()).sum(-1) != count
    if bool(is_open.any()):
        chosen[is_open] = torch.sort(scores[is_open], dim=-1, descending=True, stable=True).indices[
            ..., :count
        ]
    return chosen


def _best_groups(scores: torch.Tensor, count: int, groups: int, mode: int) -> torch.Tensor:
    """The scores, with minus infinity outside the `count` best groups."""
    grouped = scores.unflatten(-1, (groups, -1))
    strength = grouped.amax(-1) if mode == 0 else grouped.topk(2, -1).values.sum(-1)
    is_best = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, largest(strength, count), True)
    return grouped.masked_fill(~is_best[..., None], float("-inf")).flatten(1)
