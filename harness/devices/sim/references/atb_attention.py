"""ATB's attention operators: packed new tokens attend to packed keys or to a paged cache.

Sources: op_plugin/ops/atb of op-plugin (mask types, shapes of results) and its tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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

_NORMAL, _ALIBI, _CAUSAL, _LINEAR, _ROOT = 1, 2, 3, 4, 5
"""SelfAttentionParam::MaskType: full masks, with biases of heads, compressed causal masks, with biases."""
_CAUSAL_IN_CACHE = 5
"""PagedAttentionParam::MASK_TYPE_NORM_COMPRESS."""
_LARGE = 1e4

AddedScores = Callable[[int, int, int], torch.Tensor]
"""(number of the sequence, queries, keys) -> what is added to its scores."""


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
    """Packed new tokens (seq_len per sequence) attend to the cache (context_lens per sequence).

    mask: causal for each sequence, or added to scores, a row for each new token.
    """
    added = None
    if not _is_causal(mask):
        refuse("_npu_paged_attention_splitfuse", **{"a mask of another shape": len(mask) != len(query)})
        ends = torch.tensor(numbers(seq_len)).cumsum(0).tolist()

        def added(index: int, queries: int, keys: int) -> torch.Tensor:
            return mask[ends[index] - queries : ends[index], :keys][None]

    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        seq_len,
        context_lens,
        num_heads,
        num_kv_heads,
        scale_value,
        added,
    )


def paged_attention_splitfuse_by_type(
    *arguments: Any, mask_type: int | None = _CAUSAL_IN_CACHE, out: torch.Tensor
) -> None:
    """`paged_attention_splitfuse` with a causal mask."""
    if mask_type not in {None, _CAUSAL_IN_CACHE}:
        raise RuntimeError(f"mask_type only supports MASK_TYPE_NORM_COMPRESS(5), but got: {mask_type}")
    paged_attention_splitfuse(*(*arguments, out))


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


def flash_attention_unpad_by_kernel(*arguments: Any, kernel_type: int | None = 0, out: torch.Tensor) -> None:
    """`flash_attention_unpad`, also with the kernel that approximates exp."""
    if kernel_type not in {None, 0, 2}:
        raise RuntimeError(
            "kernel_type only supports KERNELTYPE_DEFAULT(0) and KERNELTYPE_EXP_M8V2(2), "
            f"but got: {kernel_type}"
        )
    flash_attention_unpad(*(*arguments, out))


def flash_attention_by_type(*arguments: Any, mask_type: int | None = _CAUSAL, out: torch.Tensor) -> None:
    """`flash_attention` with a compressed causal mask."""
    if mask_type not in {None, _CAUSAL}:
        raise RuntimeError(f"mask_type only supports MASK_TYPE_NORM_COMPRESS, but got: {mask_type}")
    flash_attention(*(*arguments, out))


def flash_attention_with_bias(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: Lengths,
    *,
    mask: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    kernel_type: int = 0,  # noqa: ARG001 - how exactly the kernel adds
    mask_type: int = _ALIBI,
    scale_value: float = 1.0,
    num_heads: int = 0,
    num_kv_heads: int = 0,
    out: torch.Tensor,
) -> torch.Tensor:
    """Packed sequences of seq_len tokens with a mask added to scores: whole, or 256 x 256 with slopes."""
    added = _added_scores("_npu_flash_attention_v2", mask_type, mask, slopes)
    call = _plain_call(num_heads, num_kv_heads or num_heads, scale_value, NO_MASK)
    _packed(call, query, key, value, seq_len, out, added)
    return out


def flash_attention_prefix(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: Lengths,
    context_lens: Lengths,
    *,
    slopes: torch.Tensor | None = None,
    kernel_type: int = 1,  # noqa: ARG001
    mask_type: int = _CAUSAL,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    out: torch.Tensor,
) -> torch.Tensor:
    """Packed new tokens attend causally to the cache, with biases of heads if there are slopes."""
    operator, added = "_npu_flash_attention_prefix_v2", None
    if mask_type == _CAUSAL:
        _require_causal(operator, mask)
    else:
        added = _added_scores(operator, mask_type, mask, slopes)
    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        seq_len,
        context_lens,
        num_heads,
        num_kv_heads or num_heads,
        scale_value,
        added,
    )
    return out


def paged_attention_with_bias(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Lengths,
    *,
    value_cache: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
    workspace: torch.Tensor | None = None,  # noqa: ARG001
    out: torch.Tensor,
) -> torch.Tensor:
    """One new token per sequence attends to the cache; mask (sequences, heads, 1, keys) with mask_type 2."""
    if value_cache is None or mask_type not in {0, _ALIBI}:
        raise RuntimeError(f"_npu_paged_attention_v2 passes ATB no inputs for mask_type {mask_type}")
    added = _added_scores("_npu_paged_attention_v2", mask_type, mask, None) if mask_type else None
    _packed_against_cache(
        (query, key_cache, value_cache, out),
        block_table,
        [1] * len(numbers(context_lens)),
        context_lens,
        num_heads,
        num_kv_heads or num_heads,
        scale_value,
        added,
    )
    return out


def latent_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Lengths,
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool = False,
    *,
    qseqlen: Lengths = None,
    cache_mode: str | None = None,
    workspace: torch.Tensor | None = None,  # noqa: ARG001
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-head latent attention: (tokens, heads, latent), and log(sum) of the softmax (tokens, heads, 1).

    The latent cache (blocks, size, heads, latent) has keys without positions, which are also the values.
    """
    operator = "npu_multi_head_latent_attention"
    refuse(operator, cache_mode=cache_mode not in {None, "krope_ctkv"})
    kinds = {
        name: others.pop(name, None) not in {None, "", "undefined", f"{name}_undefined", f"{name}_ring"}
        for name in ("calc_type", "mask_type")
    }
    refuse(operator, **{name: value is not None for name, value in others.items()}, **kinds)
    new = [1] * len(numbers(context_lens)) if qseqlen is None else numbers(qseqlen)
    out = torch.empty(q_nope.shape, dtype=q_rope.dtype)
    lse = torch.empty(*q_nope.shape[:2], 1)
    _packed_against_cache(
        (torch.cat((q_nope, q_rope), -1), torch.cat((ctkv, k_rope), -1), ctkv, out),
        block_tables,
        new,
        context_lens,
        q_headnum,
        kv_headnum,
        qk_scale,
        sums=lse,
    )
    return out, lse.to(q_rope.dtype) if return_lse else lse.new_empty(0)


def latent_attention_alone(*arguments: Any, **named: Any) -> torch.Tensor:
    """The first result of `latent_attention`."""
    return latent_attention(*arguments, **named)[0]


def latent_attention_alone_into(*arguments: Any, output: torch.Tensor, **named: Any) -> torch.Tensor:
    """The first result of `latent_attention`, into a given tensor."""
    return output.copy_(latent_attention_alone(*arguments, **named))


def latent_attention_into(
    *arguments: Any, output: torch.Tensor, lse: torch.Tensor, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`latent_attention` into given tensors."""
    found = latent_attention(*arguments, **named)
    for target, value in zip((output, lse), found, strict=True):
        if value.numel():
            target.copy_(value)
    return output, lse


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
    added: AddedScores | None = None,
) -> None:
    start = 0
    for index, length in enumerate(numbers(lengths)):
        rows = slice(start, start + length)
        start += length
        q = query[rows].reshape(length, call.heads, -1)
        k, v = (x[rows].reshape(length, call.key_heads, -1) for x in (key, value))
        here = replace(call, added=added(index, length, length)) if added else call
        out[rows] = attend(here, q, k, v)[0].reshape(out[rows].shape).to(out.dtype)


def _packed_against_cache(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    query_lengths: Lengths,
    key_lengths: Lengths,
    heads: int,
    key_heads: int,
    scale: float,
    added: AddedScores | None = None,
    sums: torch.Tensor | None = None,
) -> None:
    """Causal, if nothing is added to scores. sums: where log(sum) of the softmax goes."""
    query, key_cache, value_cache, out = tensors
    call = _plain_call(heads, key_heads, scale, NO_MASK if added else RIGHT_DOWN)
    start = 0
    for index, (length, seen) in enumerate(zip(numbers(query_lengths), numbers(key_lengths), strict=True)):
        rows = slice(start, start + length)
        start += length
        q = query[rows].reshape(length, heads, -1)
        k, v = (load_rows(cache, table[index], seen, key_heads) for cache in (key_cache, value_cache))
        found, total = attend(replace(call, added=added(index, length, seen)) if added else call, q, k, v)
        out[rows] = found.reshape(out[rows].shape).to(out.dtype)
        if sums is not None:
            sums[rows] = total


def _added_scores(
    operator: str, mask_type: int, mask: torch.Tensor | None, slopes: torch.Tensor | None
) -> AddedScores:
    """What a mask adds to scores: a whole one by sequence and head, or distances times slopes of heads."""
    whole = mask_type in {_NORMAL, _ALIBI}
    refuse(operator, **{f"mask_type {mask_type}": not whole and mask_type not in {_LINEAR, _ROOT}})
    if mask is None or (slopes is None and not whole):
        raise RuntimeError(
            f"{operator} with mask_type {mask_type} needs a mask{'' if whole else ' and slopes'}"
        )

    def rows(index: int, queries: int, keys: int) -> torch.Tensor:
        # Three dimensions are of sequences or, with biases, of heads.
        one = (
            mask[index]
            if mask.dim() == 4
            else mask
            if mask.dim() == 2 or mask_type == _ALIBI
            else mask[[index]]
        )
        values = one.reshape(-1, *one.shape[-2:])[:, :queries, :keys].float()
        return torch.where(values > 0, float("-inf"), values) if mask_type == _NORMAL else values

    def biases(_index: int, queries: int, keys: int) -> torch.Tensor:
        distances = _distances(queries, keys, mask_type)
        assert slopes is not None
        return torch.where(distances < 0, float("-inf"), slopes.float().view(-1, 1, 1) * distances)

    if not whole:
        size = len(mask)
        expected = _distances(size, size, mask_type).to(mask.dtype)
        near = (mask - expected).abs() <= torch.finfo(mask.dtype).eps * expected
        as_expected = torch.where(expected < 0, mask >= _LARGE, near).all()
        refuse(operator, **{"a mask that does not have the distances of tokens": not as_expected})
    return rows if whole else biases


def _distances(queries: int, keys: int, mask_type: int) -> torch.Tensor:
    """How far a key is before a query, or the root of it; negative behind it."""
    behind = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
    return behind.abs().float().sqrt() * behind.sign() if mask_type == _ROOT else behind.float()


def _require_causal(operator: str, mask: torch.Tensor) -> None:
    """NotImplementedError for a mask that is not causal, because the reference always computes causally."""
    refuse(operator, **{"a mask that is not causal": not _is_causal(mask)})


def _is_causal(mask: torch.Tensor) -> bool:
    square = mask if mask.dim() == 2 else mask.flatten(0, -3)[0]
    size = min(square.shape[-2:])
    square = square[:size, :size] != 0
    causal: bool = torch.equal(square, torch.ones_like(square).triu(1))
    return causal
