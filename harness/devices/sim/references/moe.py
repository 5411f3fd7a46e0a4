"""Sorting tokens by expert and back, for training of MoE models."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import dtype_of, refuse, wide


def npu_moe_token_permute(
    tokens: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeats tokens (n, h) for each of their experts in `indices` (n,) or (n, k), sorted by expert.

    The second result (int32) has, for each entry of `indices`, its row in the first result.
    """
    refuse("npu_moe_token_permute", padded_mode=padded_mode)
    order = torch.argsort(indices.reshape(-1), stable=True)
    rows = torch.argsort(order, stable=True).to(torch.int32)
    order = order[:num_out_tokens] if num_out_tokens else order
    return tokens.index_select(0, order // _experts_per_token(indices)), rows


def npu_moe_token_permute_grad(
    tokens: torch.Tensor,
    grad_permuted_tokens: torch.Tensor,
    indices: torch.Tensor,
    sorted_indices: torch.Tensor,
    padded_mode: bool = False,
) -> torch.Tensor:
    """Gradient for the tokens: the sum of the gradients of their copies."""
    refuse("npu_moe_token_permute_grad", padded_mode=padded_mode)
    copies = _rows(grad_permuted_tokens, sorted_indices)
    summed = copies.reshape(-1, _experts_per_token(indices), tokens.shape[-1]).sum(1)
    return summed.to(tokens.dtype)


def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    tokens_size_0: int,  # noqa: ARG001 - follows from the other arguments
    tokens_dtype: int | torch.dtype,
    num_topK: int,  # noqa: N803 - the operator's own argument name
    padded_mode: bool = False,
) -> torch.Tensor:
    """`npu_moe_token_permute_grad` with sizes as arguments instead of tensors."""
    refuse("npu_moe_token_permute_grad_v2", padded_mode=padded_mode)
    copies = _rows(grad_permuted_tokens, sorted_indices)
    summed = copies.reshape(-1, num_topK, grad_permuted_tokens.shape[-1]).sum(1)
    return summed.to(dtype_of(tokens_dtype))


def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,  # noqa: ARG001 - only used in padded mode
) -> torch.Tensor:
    """The tokens in their original order, weighted by probs (n, k) and summed over their k experts."""
    refuse("npu_moe_token_unpermute", padded_mode=padded_mode)
    copies = _rows(permuted_tokens, sorted_indices)
    per_token = 1 if probs is None else probs.shape[1]
    copies = copies.reshape(-1, per_token, permuted_tokens.shape[-1])
    if probs is not None:
        copies = copies * wide(probs)[..., None]
    return copies.sum(1).to(permuted_tokens.dtype)


def npu_moe_token_unpermute_grad(
    permuted_tokens: torch.Tensor,
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for the permuted tokens and for probs; the second is empty without probs."""
    refuse("npu_moe_token_unpermute_grad", padded_mode=padded_mode)
    per_token = 1 if probs is None else probs.shape[1]
    grad = wide(grad_unpermuted_tokens)[:, None, :].expand(-1, per_token, -1)
    for_copies = grad if probs is None else grad * wide(probs)[..., None]
    flat = for_copies.reshape(-1, permuted_tokens.shape[-1])
    inside = sorted_indices < permuted_tokens.shape[0]
    for_tokens = torch.zeros_like(permuted_tokens, dtype=flat.dtype)
    for_tokens.index_copy_(0, sorted_indices[inside].long(), flat[inside])
    if probs is None:
        return for_tokens.to(permuted_tokens.dtype), permuted_tokens.new_empty(0)
    copies = _rows(permuted_tokens, sorted_indices).reshape(grad.shape)
    return for_tokens.to(permuted_tokens.dtype), (grad * copies).sum(-1).to(probs.dtype)


def token_unpermute_with_copies(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_moe_token_unpermute`, and the tokens that its backward needs; these are empty without probs."""
    out = npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
    return out, permuted_tokens.new_empty(0) if probs is None else permuted_tokens.clone()


def token_unpermute_with_copies_grad(
    grad_unpermuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: int | torch.dtype,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
    permuted_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_moe_token_unpermute_grad` for tokens that the forward returned only with probs."""
    if permuted_tokens is None or not permuted_tokens.numel():
        shape = (permuted_tokens_size_0, grad_unpermuted_tokens.shape[-1])
        permuted_tokens = torch.zeros(shape, dtype=dtype_of(permuted_tokens_dtype))
    return npu_moe_token_unpermute_grad(
        permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    )


def npu_moe_re_routing(
    tokens: torch.Tensor,
    expert_token_num_per_rank: torch.Tensor,
    *,
    per_token_scales: torch.Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens sorted by rank and expert -> sorted by expert and rank.

    expert_token_num_per_rank (ranks, experts) has the numbers of tokens. Returns the tokens, their scales,
    their rows before, and the number of tokens of each expert.
    """
    refuse(
        "npu_moe_re_routing",
        expert_token_num_type=expert_token_num_type != 1,
        idx_type=idx_type,
        tokens_dtype=tokens_dtype,
    )
    counts = expert_token_num_per_rank.long()
    experts = torch.arange(counts.shape[1]).repeat(counts.shape[0]).repeat_interleave(counts.reshape(-1))
    order = torch.argsort(experts, stable=True)
    scales = torch.zeros(len(order)) if per_token_scales is None else per_token_scales[order]
    return (
        tokens[order],
        scales,
        order.to(torch.int32),
        expert_token_num_per_rank.sum(0).to(expert_token_num_per_rank.dtype),
    )


def _experts_per_token(indices: torch.Tensor) -> int:
    return 1 if indices.dim() == 1 else indices.shape[1]


def _rows(tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The given rows of `tokens`, zero for rows that num_out_tokens dropped."""
    is_inside = rows < tokens.shape[0]
    selected = wide(tokens).index_select(0, rows.clamp_max(tokens.shape[0] - 1).long())
    return selected * is_inside[:, None]


def npu_moe_token_permute_with_routing_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    *,
    probs: torch.Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Repeats tokens (n, h) for each expert that `routing_map` (n, experts) gives them, sorted by expert.

    The second result has their entries of `probs` (n, experts); it is empty without probs. The third (int32)
    has, for each copy of the first token, then of the second, its row in the first result.
    drop_and_pad: each expert gets num_out_tokens / experts tokens, its own first; the third result has the
    token of each row. Source: the golden of test_npu_moe_token_permute_with_routing_map.py of op-plugin.
    """
    wanted = len(tokens) if num_out_tokens is None else num_out_tokens
    if drop_and_pad:
        capacity = wanted // routing_map.shape[1]
        order = routing_map.to(torch.int8).T.sort(dim=-1, descending=True, stable=True)[1]
        copied = order[:, :capacity].reshape(-1)
        experts, third = _padded_experts(len(copied), routing_map.shape[1]), copied
    else:
        experts, copied = routing_map.bool().T.nonzero(as_tuple=True)
        rows = wanted // len(routing_map) * len(routing_map)
        refuse(
            "npu_moe_token_permute_with_routing_map",
            **{f"{len(copied)} places for {rows} rows": len(copied) != rows},
        )
        third = torch.argsort(copied, stable=True)
    weights = tokens.new_empty(0) if probs is None else probs[copied, experts]
    return tokens[copied], weights, third.to(torch.int32)


def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: torch.Tensor,
    probs_grad: torch.Tensor | None,
    sorted_indices: torch.Tensor,
    routing_map: torch.Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for the tokens, the sums of those of their copies, and for probs; the second may be empty."""
    if drop_and_pad:
        copied, experts = sorted_indices.long(), _padded_experts(len(sorted_indices), experts_num)
    else:
        experts, copied = routing_map.bool().T.nonzero(as_tuple=True)
    for_copies = wide(permuted_token_out_grad)
    for_tokens = for_copies.new_zeros(tokens_num, for_copies.shape[1]).index_add(0, copied, for_copies)
    if probs_grad is None:
        return for_tokens.to(permuted_token_out_grad.dtype), for_tokens.new_empty(0)
    for_probs = probs_grad.new_zeros(tokens_num, experts_num)
    for_probs[copied, experts] = probs_grad
    return for_tokens.to(permuted_token_out_grad.dtype), for_probs


def token_unpermute_with_routing_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: list[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tokens (n, h) = restore_shape, summed over their copies, weighted by probs (n, experts).

    With drop_and_pad the second and third result sort `sorted_indices`: the rows, and the token of each. The
    fourth has the weights; it is empty without probs.
    """
    rows, copied = sorted_indices.long(), _copies_in_turn(len(sorted_indices), restore_shape[0])
    second = third = torch.zeros_like(sorted_indices)
    if drop_and_pad:
        third, rows = sorted_indices.sort(stable=True)
        second, copied = rows.to(sorted_indices.dtype), third.long()
    copies = wide(permuted_tokens[rows])
    weights = permuted_tokens.new_empty(0)
    if probs is not None:
        weights = probs[copied, _experts(rows, probs, routing_map, drop_and_pad)]
        copies = copies * wide(weights)[:, None]
        if drop_and_pad:
            # In the order of the rows.
            weights = torch.empty_like(weights).index_copy_(0, rows, weights)
    summed = copies.new_zeros(*restore_shape).index_add(0, copied, copies)
    return summed.to(permuted_tokens.dtype), second, third, weights


def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: torch.Tensor,
    out_index: torch.Tensor,
    permuted_token_id: torch.Tensor,
    routing_map: torch.Tensor | None,
    permuted_tokens: torch.Tensor | None,
    probs: torch.Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for the permuted tokens and for probs; the second is empty without probs."""
    rows = out_index.long()
    copied = permuted_token_id.long() if drop_and_pad else _copies_in_turn(len(rows), restore_shape[0])
    grad = wide(unpermuted_tokens_grad)[copied]
    dtype = unpermuted_tokens_grad.dtype
    if probs is None or permuted_tokens is None:
        return torch.empty_like(grad).index_copy_(0, rows, grad).to(dtype), grad.new_empty(0)
    experts = _experts(rows, probs, routing_map, drop_and_pad)
    for_tokens = grad * wide(probs)[copied, experts][:, None]
    for_probs = grad.new_zeros(probs.shape)
    for_probs[copied, experts] = (grad * permuted_tokens[rows]).sum(-1)
    return torch.empty_like(grad).index_copy_(0, rows, for_tokens).to(dtype), for_probs.to(dtype)


def _experts(
    rows: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor | None, drop_and_pad: bool
) -> torch.Tensor:
    """The expert of each copy."""
    if drop_and_pad:
        return _padded_experts(len(rows), probs.shape[1])[rows]
    refuse("npu_moe_token_unpermute_with_routing_map", **{"probs without routing_map": routing_map is None})
    assert routing_map is not None
    return routing_map.bool().nonzero(as_tuple=True)[1]


def _padded_experts(rows: int, experts: int) -> torch.Tensor:
    """The expert of each row, where all have the same number of rows."""
    return torch.arange(experts).repeat_interleave(rows // experts)


def _copies_in_turn(copies: int, tokens: int) -> torch.Tensor:
    """The token of each copy, where all have the same number of copies."""
    return torch.arange(tokens).repeat_interleave(copies // tokens)
