"""ATB's attention operators: packed new tokens attend to packed keys or to a paged cache."""

from __future__ import annotations

import torch

from harness.devices.sim.references.cache import load_rows
from harness.devices.sim.references.precision import refuse
from harness.devices.sim.references.serving_attention import (
    NO_MASK,
    RIGHT_DOWN,
    AttentionCall,
    Lengths,
    attend,
    numbers,
)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,  # noqa: ARG001 - memory, no arithmetic
) -> None:
    """One new token per sequence attends to the cache. context_lens includes the new token."""
    ones = [1] * len(context_lens)
    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        ones,
        context_lens,
        num_heads,
        num_kv_heads,
        scale_value,
    )


def paged_attention_mla(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mla_vheadsize: int,
    out: torch.Tensor,
) -> None:
    """`paged_attention` of latent keys, whose first `mla_vheadsize` numbers are the values."""
    values = key_cache[..., :mla_vheadsize]
    paged_attention(
        *(query, key_cache, values, num_kv_heads, num_heads, scale_value, block_table, context_lens, out)
    )


def paged_attention_splitfuse(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """Packed new tokens (seq_len per sequence) attend causally to the cache (context_lens per sequence)."""
    _require_causal("_npu_paged_attention_splitfuse", mask)
    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        seq_len,
        context_lens,
        num_heads,
        num_kv_heads,
        scale_value,
    )


def flash_attention_qlens(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    context_lens: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    out: torch.Tensor,
) -> None:
    """`paged_attention_splitfuse` with its arguments in another order."""
    _require_causal("_npu_flash_attention_qlens", mask)
    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        seq_len,
        context_lens,
        num_heads,
        num_kv_heads,
        scale_value,
    )


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """Packed sequences of seq_len tokens each. Every token attends causally to its own sequence."""
    _require_causal("_npu_flash_attention", mask)
    call = _plain_call(num_heads, num_kv_heads, scale_value, RIGHT_DOWN)
    _packed(call, query, key, value, seq_len, out)


def flash_attention_unpad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: torch.Tensor,
) -> None:
    """`flash_attention` without a mask: every token attends to its whole sequence."""
    _packed(_plain_call(num_heads, num_kv_heads, scale_value, NO_MASK), query, key, value, seq_len, out)


def _plain_call(heads: int, key_heads: int, scale: float, sparse_mode: int) -> AttentionCall:
    return AttentionCall(
        heads=heads, key_heads=key_heads, scale=scale, mask=None, sparse_mode=sparse_mode, before=0, after=0
    )


def _packed(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Lengths,
    out: torch.Tensor,
) -> None:
    start = 0
    for length in numbers(lengths):
        rows = slice(start, start + length)
        start += length
        q = query[rows].reshape(length, call.heads, -1)
        k, v = (x[rows].reshape(length, call.key_heads, -1) for x in (key, value))
        out[rows] = attend(call, q, k, v)[0].reshape(out[rows].shape).to(out.dtype)


def _packed_against_cache(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    query_lengths: Lengths,
    key_lengths: Lengths,
    heads: int,
    key_heads: int,
    scale: float,
) -> None:
    query, key_cache, value_cache, out = tensors
    call = _plain_call(heads, key_heads, scale, RIGHT_DOWN)
    start = 0
    for index, (length, seen) in enumerate(zip(numbers(query_lengths), numbers(key_lengths), strict=True)):
        rows = slice(start, start + length)
        start += length
        q = query[rows].reshape(length, heads, -1)
        k, v = (load_rows(cache, table[index], seen, key_heads) for cache in (key_cache, value_cache))
        out[rows] = attend(call, q, k, v)[0].reshape(out[rows].shape).to(out.dtype)


def _require_causal(operator: str, mask: torch.Tensor) -> None:
    """NotImplementedError for a mask that is not causal, because the reference always computes causally."""
    square = mask if mask.dim() == 2 else mask.flatten(0, -3)[0]
    size = min(square.shape[-2:])
    square = square[:size, :size] != 0
    refuse(
        operator, **{"a mask that is not causal": not torch.equal(square, torch.ones_like(square).triu(1))}
    )
