"""Attention of serving engines: new tokens attend to keys and values that are packed or in a paged cache.

T is the number of all new tokens, N of heads, G of key heads (G divides N), D the head size, and H = N*D. The
new tokens are the last ones of their sequence, so the causal diagonal ends in the last row and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from harness.devices.sim.references.cache import load_rows
from harness.devices.sim.references.precision import refuse, wide

Lengths: TypeAlias = torch.Tensor | Sequence[int] | None

_FUSED = "npu_fused_infer_attention_score"
NO_MASK, _LEFT_UP, RIGHT_DOWN, _BAND = 0, 2, 3, 4
_UNBOUND = 2147483647
# Arguments that change how a kernel works, but not what it computes.
_HINTS = frozenset({"inner_precise", "block_size", "workspace"})


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """The heads, scale and masking of one call. before, after: extent of the band in sparse mode 4.

    added: what is added to scaled scores, (heads or 1, queries, keys).
    """

    heads: int
    key_heads: int
    scale: float
    mask: torch.Tensor | None
    sparse_mode: int
    before: int
    after: int
    sink: torch.Tensor | None = None
    added: torch.Tensor | None = None


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    actual_seq_lengths_kv: Lengths = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    softmax_lse_flag: bool = False,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in the layout of the query, and log(sum) of the softmax (float32), zero without its flag."""
    _refuse_others(others)
    call = AttentionCall(
        heads=num_heads,
        key_heads=num_key_value_heads or num_heads,
        scale=scale,
        mask=atten_mask,
        sparse_mode=sparse_mode,
        before=pre_tokens,
        after=next_tokens,
    )
    out, lse = _fused(
        call, input_layout, query, key, value, actual_seq_lengths, actual_seq_lengths_kv, block_table
    )
    return out, lse if softmax_lse_flag else torch.zeros(0)


def npu_fused_infer_attention_score_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    block_table: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    return_softmax_lse: bool = False,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with other argument names, and with a learnable sink (N,): a score without a value."""
    _refuse_others(others)
    call = AttentionCall(
        heads=num_query_heads,
        key_heads=num_key_value_heads or num_query_heads,
        scale=softmax_scale,
        mask=atten_mask,
        sparse_mode=sparse_mode,
        before=pre_tokens,
        after=next_tokens,
        sink=learnable_sink,
    )
    out, lse = _fused(call, input_layout, query, key, value, actual_seq_qlen, actual_seq_kvlen, block_table)
    return out, lse if return_softmax_lse else torch.zeros(0)


def npu_incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    **others: object,
) -> torch.Tensor:
    """Attention of one new token of each sequence. actual_seq_lengths: of the keys."""
    _refuse_others(others)
    call = _unwindowed(num_heads, num_key_value_heads, scale_value, atten_mask, NO_MASK)
    return _fused(call, input_layout, query, key, value, None, actual_seq_lengths, block_table)[0]


def npu_prompt_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Lengths = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = _UNBOUND,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: Lengths = None,
    sparse_mode: int = 0,
    **others: object,
) -> torch.Tensor:
    """Attention of whole sequences. A window that may leave out keys is refused; the default has none."""
    _refuse_others(others)
    longest = max(*query.shape, *key.shape)
    window = pre_tokens < longest or 0 < next_tokens < longest
    refuse("npu_prompt_flash_attention", window=window, **{"a band": sparse_mode == _BAND})
    call = _unwindowed(num_heads, num_key_value_heads, scale_value, atten_mask, sparse_mode)
    lengths = (actual_seq_lengths, actual_seq_lengths_kv)
    return _fused(call, input_layout, query, key, value, *lengths, None)[0]


def _unwindowed(
    heads: int, key_heads: int, scale: float, mask: torch.Tensor | None, sparse_mode: int
) -> AttentionCall:
    return AttentionCall(
        heads=heads,
        key_heads=key_heads or heads,
        scale=scale,
        mask=mask,
        sparse_mode=sparse_mode,
        before=_UNBOUND,
        after=_UNBOUND,
    )


def npu_attention_update(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over parts of the keys, given as results (n, d) and log(sum) of the softmax (n,).

    The merged log(sum) is 0 with update_type 0, where the operator writes none.
    """
    sums = torch.stack([wide(part) for part in lse])
    total = torch.logsumexp(sums, 0)
    parts = torch.stack([wide(part) for part in local_out])
    merged = (parts * torch.exp(sums - total).unsqueeze(-1)).sum(0)
    written = total if update_type == 1 else torch.zeros_like(total)
    return merged.to(local_out[0].dtype), written.to(lse[0].dtype)


def _fused(
    call: AttentionCall,
    layout: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: Lengths,
    key_lengths: Lengths,
    table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if call.sparse_mode not in {NO_MASK, _LEFT_UP, RIGHT_DOWN, _BAND}:
        refuse(_FUSED, **{f"sparse_mode {call.sparse_mode}": True})
    if call.sparse_mode == NO_MASK:
        # CANN versions differ in whether the window has an effect without a mask.
        refuse(_FUSED, **{"a window in sparse_mode 0": call.before < _longest(key, key_lengths)})
        refuse(_FUSED, **{"a mask in sparse_mode 0": call.mask is not None})
    elif call.mask is None:
        raise RuntimeError(f"{_FUSED}: sparse_mode {call.sparse_mode} needs the compressed atten_mask")
    if layout == "TND":
        return _fused_packed(call, query, key, value, query_lengths, key_lengths, table)
    if layout in {"BSH", "BSND", "BNSD"}:
        return _fused_batch(call, layout, query, key, value, query_lengths, key_lengths, table)
    raise NotImplementedError(f"{_FUSED} is not simulated in layout {layout!r}")


def _fused_packed(
    call: AttentionCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: Lengths,
    key_lengths: Lengths,
    table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layout TND. key_lengths are the ends of packed keys, or the lengths of the sequences in a cache."""
    out = query.new_zeros(*query.shape[:2], value.shape[-1] if table is None else query.shape[-1])
    lse = torch.zeros(*query.shape[:2], 1, dtype=wide(query).dtype)
    start = key_start = 0
    for index, (end, key_end) in enumerate(zip(numbers(query_ends), numbers(key_lengths), strict=True)):
        if table is None:
            k, v = key[key_start:key_end], value[key_start:key_end]
            key_start = key_end
        else:
            k, v = (load_rows(cache, table[index], key_end, call.key_heads) for cache in (key, value))
        if end > start:
            own, sums = attend(call, query[start:end], k, v)
            out[start:end], lse[start:end] = own.to(out.dtype), sums
        start = end
    return out, lse


def _fused_batch(
    call: AttentionCall,
    layout: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: Lengths,
    key_lengths: Lengths,
    table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layouts BSH, BSND and BNSD. The rows of a sequence after its length are zero in the result."""
    queries = _rows_first(query, layout, call.heads)
    batch, rows = queries.shape[:2]
    out = queries.new_zeros(queries.shape)
    lse = torch.zeros(batch, call.heads, rows, 1, dtype=wide(query).dtype)
    lengths = _per_sequence(query_lengths, batch, rows)
    for index in range(batch):
        if table is None:
            keys, values = (_rows_first(x, layout, call.key_heads)[index] for x in (key, value))
            seen = _per_sequence(key_lengths, batch, keys.shape[0])[index]
            k, v = keys[:seen], values[:seen]
        else:
            seen = _per_sequence(key_lengths, batch, 0)[index]
            k, v = (load_rows(cache, table[index], seen, call.key_heads) for cache in (key, value))
        own, sums = attend(call, queries[index, : lengths[index]], k, v)
        out[index, : lengths[index]] = own.to(out.dtype)
        lse[index, :, : lengths[index]] = sums.transpose(0, 1)
    if layout == "BSH":
        return out.flatten(2), lse
    return (out.transpose(1, 2).contiguous() if layout == "BNSD" else out), lse


def attend(
    call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries (S, N, D) to keys (K, G, D), and log(sum) of the softmax (S, N, 1).

    The result has the shape (S, N, D) and is zero where a mask hides everything.
    """
    q, k, v = (wide(x).transpose(0, 1) for x in (query, key, value))
    repeats = call.heads // call.key_heads
    k, v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
    scores = q @ k.transpose(-1, -2) * call.scale
    if call.added is not None:
        scores = scores + wide(call.added)
    hidden = _hidden(call, q.shape[1], k.shape[1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    if call.sink is not None:
        sink = wide(call.sink).view(-1, 1, 1)
        largest = torch.maximum(largest, sink)
    weights = torch.exp(scores - largest).nan_to_num(0.0)
    total = weights.sum(-1, keepdim=True)
    if call.sink is not None:
        total = total + torch.exp(sink - largest)
    out = (weights / total).nan_to_num(0.0) @ v
    return out.transpose(0, 1), (largest + total.log()).transpose(0, 1)


def _hidden(call: AttentionCall, queries: int, keys: int) -> torch.Tensor | None:
    """The mask of the sparse mode: True where a query does not attend to a key."""
    if call.sparse_mode == NO_MASK:
        return None
    shift = 0 if call.sparse_mode == _LEFT_UP else keys - queries
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - shift
    if call.sparse_mode == _BAND:
        return (distance > call.after) | (-distance > call.before)
    return distance > 0


def _rows_first(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """The tensor with the layout (B, S, N, D)."""
    if layout == "BSH":
        return x.unflatten(-1, (heads, -1))
    return x.transpose(1, 2) if layout == "BNSD" else x


def _per_sequence(lengths: Lengths, batch: int, whole: int) -> list[int]:
    if lengths is None:
        return [whole] * batch
    values = numbers(lengths)
    return values * batch if len(values) == 1 else values


def _longest(key: torch.Tensor, key_lengths: Lengths) -> int:
    return max(numbers(key_lengths), default=0) if key_lengths is not None else max(key.shape)


def numbers(lengths: Lengths) -> list[int]:
    """The lengths as a list; RuntimeError for None."""
    if lengths is None:
        raise RuntimeError("packed sequences need their lengths")
    return [int(x) for x in (lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def _refuse_others(others: dict[str, object]) -> None:
    refuse(
        _FUSED,
        **{
            name: True
            for name, value in others.items()
            if name not in _HINTS and value is not None and not (isinstance(value, int) and value == 0)
        },
    )
