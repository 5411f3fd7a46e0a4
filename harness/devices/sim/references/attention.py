"""Fusion attention, forward and backward, in the layouts BSH, SBH, BSND, BNSD and TND.

B is the batch, S the sequence length, N the number of heads, D the head size, H = N*D, and T the number of
all tokens of packed sequences. Keys and values may have fewer heads than queries (grouped-query attention).
True in a mask hides an entry. The result of a fully hidden row is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.sim.references.dropout import kept_elements, seeded_mask
from harness.devices.sim.references.precision import refuse, wide

# The operator returns the softmax statistics once for each lane of a vector register block.
_LANES = 8
_LEFT_UP_CAUSAL, _RIGHT_DOWN_CAUSAL = 2, 3


@dataclass(frozen=True, kw_only=True)
class _Case:
    """The layout, scale and masking of one call.

    before, after: extent of the window of sparse mode 0. kept: the probabilities (B, N, queries, keys) that
    dropout keeps, each divided by keep_prob; None without dropout.
    """

    layout: str
    head_size: int
    scale: float
    mask: torch.Tensor | None
    sparse_mode: int
    before: int
    after: int
    query_ends: Sequence[int] | None
    key_ends: Sequence[int] | None
    keep_prob: float = 1.0
    kept: torch.Tensor | None = None

    def dropped(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Probabilities, or their gradients, after dropout."""
        return probabilities if self.kept is None else probabilities * self.kept / self.keep_prob


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,  # noqa: ARG001 - a hint for speed
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,  # noqa: ARG001 - how dropout masks are made
    sync: bool = False,  # noqa: ARG001
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """Attention, row maxima and row sums of the softmax (float32, 8 lanes), and an empty tensor.

    The numbers are seed, offset and size of the dropout mask, which the gradient makes again; 0 without
    dropout.
    """
    _refuse_unknown(pse, padding_mask, prefix, sink, softmax_layout)
    refuse(
        "npu_fusion_attention",
        **{"keep_prob without dropout_mask": keep_prob != 1.0 and dropout_mask is None},
    )
    _check_sparse_mode(atten_mask, sparse_mode)
    kept = None
    if keep_prob != 1.0 and dropout_mask is not None:
        kept = kept_elements(dropout_mask, _mask_shape(query, key, head_num, input_layout))
    case = _Case(
        layout=input_layout,
        head_size=_head_size(query, head_num, input_layout),
        scale=scale,
        mask=atten_mask,
        sparse_mode=sparse_mode,
        before=pre_tockens,
        after=next_tockens,
        query_ends=actual_seq_qlen,
        key_ends=actual_seq_kvlen,
        keep_prob=keep_prob,
        kept=kept,
    )
    outputs, maxima, sums = [], [], []
    for part in _sequences(case, query, key, value):
        q, k, v, mask = *(_to_bnsd(case, x) for x in part[:3]), part[3]
        out, largest, total = _forward(case, q, k, v, mask)
        outputs.append(_from_bnsd(case, out))
        maxima.append(_from_statistics(case, largest))
        sums.append(_from_statistics(case, total))
    numbers = (0, 0, 0) if kept is None else (seed, offset, kept.numel())
    results = _joined(outputs).to(query.dtype), _joined(maxima), _joined(sums)
    return *results, query.new_empty(0), *numbers


def npu_fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    softmax_in: torch.Tensor | None = None,  # noqa: ARG001 - empty in the forward result
    attention_in: torch.Tensor,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,  # noqa: ARG001
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,  # noqa: ARG001 - follows from the shapes
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,  # noqa: ARG001
    sync: bool = False,  # noqa: ARG001
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for query, key and value, and two empty tensors.

    As in FlashAttention-2 (arXiv 2307.08691, algorithm 2), the probabilities come from the softmax statistics
    of the forward operator, and dS = P * (dP - sum(dO * O)). A wrong forward result therefore also changes
    the gradients.
    """
    _refuse_unknown(pse, padding_mask, prefix, sink, softmax_layout)
    _check_sparse_mode(atten_mask, sparse_mode)
    kept = None
    if keep_prob != 1.0:
        shape = _mask_shape(query, key, head_num, input_layout)
        kept = kept_elements(seeded_mask(query, shape, 1 - keep_prob, seed, offset), shape)
    case = _Case(
        layout=input_layout,
        head_size=_head_size(query, head_num, input_layout),
        scale=scale_value,
        mask=atten_mask,
        sparse_mode=sparse_mode,
        before=pre_tockens,
        after=next_tockens,
        query_ends=actual_seq_qlen,
        key_ends=actual_seq_kvlen,
        keep_prob=keep_prob,
        kept=kept,
    )
    grads: tuple[list[torch.Tensor], ...] = ([], [], [])
    row = 0
    for q, k, v, mask in _sequences(case, query, key, value):
        rows = slice(row, row + q.shape[0]) if case.layout == "TND" else slice(None)
        row += q.shape[0]
        parts = _backward(
            case,
            _to_bnsd(case, q),
            _to_bnsd(case, k),
            _to_bnsd(case, v),
            _to_bnsd(case, dy[rows]),
            _to_bnsd(case, attention_in[rows]),
            _to_statistics(case, softmax_max[rows]),
            _to_statistics(case, softmax_sum[rows]),
            mask,
        )
        for list_, grad in zip(grads, parts, strict=True):
            list_.append(_from_bnsd(case, grad))
    dq, dk, dv = (_joined(list_).to(query.dtype) for list_ in grads)
    return dq, dk, dv, query.new_empty(0), query.new_empty(0)


def npu_fusion_attention_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_type: int = 1,  # noqa: ARG001 - of pse, which is refused
    q_start_idx: Sequence[int] | None = None,  # noqa: ARG001
    kv_start_idx: Sequence[int] | None = None,  # noqa: ARG001
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """`npu_fusion_attention` with more arguments."""
    refuse("npu_fusion_attention_v2", query_rope=query_rope is not None, key_rope=key_rope is not None)
    return npu_fusion_attention(
        *(query, key, value, head_num, input_layout),
        pre_tockens=pre_tokens,
        next_tockens=next_tokens,
        **options,
    )


def npu_fusion_attention_grad_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_type: int = 1,  # noqa: ARG001
    q_start_idx: Sequence[int] | None = None,  # noqa: ARG001
    kv_start_idx: Sequence[int] | None = None,  # noqa: ARG001
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """Gradients for query, key and value, and four empty tensors."""
    refuse("npu_fusion_attention_grad_v2", query_rope=query_rope is not None, key_rope=key_rope is not None)
    found = npu_fusion_attention_grad(
        *(query, key, value, dy, head_num, input_layout),
        pre_tockens=pre_tokens,
        next_tockens=next_tokens,
        **options,
    )
    return *found, query.new_empty(0), query.new_empty(0)


def _mask_shape(query: torch.Tensor, key: torch.Tensor, heads: int, layout: str) -> list[int]:
    """(B, N, queries, keys) of a dropout mask."""
    axes = {"BSH": (0, 1), "SBH": (1, 0), "BSND": (0, 1), "BNSD": (0, 2)}.get(layout)
    if axes is None:
        raise NotImplementedError(
            f"the simulated device does not compute npu_fusion_attention with dropout in {layout}"
        )
    batch, rows = axes
    return [query.shape[batch], heads, query.shape[rows], key.shape[rows]]


def _refuse_unknown(
    pse: torch.Tensor | None,
    padding_mask: torch.Tensor | None,
    prefix: Sequence[int] | None,
    sink: torch.Tensor | None,
    softmax_layout: str,
) -> None:
    refuse(
        "npu_fusion_attention",
        pse=pse is not None and pse.numel(),
        padding_mask=padding_mask is not None and padding_mask.numel(),
        prefix=prefix,
        sink=sink is not None and sink.numel(),
        softmax_layout=softmax_layout,
    )


def _check_sparse_mode(mask: torch.Tensor | None, sparse_mode: int) -> None:
    if sparse_mode not in {0, 1, _LEFT_UP_CAUSAL, _RIGHT_DOWN_CAUSAL}:
        refuse("npu_fusion_attention", **{f"sparse_mode {sparse_mode}": True})
    if sparse_mode in {_LEFT_UP_CAUSAL, _RIGHT_DOWN_CAUSAL} and mask is None:
        raise RuntimeError(f"npu_fusion_attention: sparse_mode {sparse_mode} needs the compressed atten_mask")


def _head_size(query: torch.Tensor, heads: int, layout: str) -> int:
    return int(query.shape[-1]) // heads if layout in {"BSH", "SBH"} else int(query.shape[-1])


def _sequences(
    case: _Case, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Each sequence of a packed batch with its mask; any other layout as one batch with its mask."""
    q, k, v = wide(query), wide(key), wide(value)
    if case.layout != "TND":
        dim = {"BSH": 1, "SBH": 0, "BSND": 1, "BNSD": 2}.get(case.layout)
        if dim is None:
            raise NotImplementedError(f"npu_fusion_attention is not simulated in layout {case.layout!r}")
        yield q, k, v, _mask(case, q.shape[dim], k.shape[dim])
        return
    if case.query_ends is None or case.key_ends is None:
        raise RuntimeError("npu_fusion_attention: layout TND needs actual_seq_qlen and actual_seq_kvlen")
    start, key_start = 0, 0
    for end, key_end in zip(case.query_ends, case.key_ends, strict=True):
        queries, keys = slice(start, end), slice(key_start, key_end)
        yield q[queries], k[keys], v[keys], _mask(case, end - start, key_end - key_start)
        start, key_start = end, key_end


def _mask(case: _Case, queries: int, keys: int) -> torch.Tensor | None:
    if case.mask is None:
        return None
    if case.sparse_mode in {_LEFT_UP_CAUSAL, _RIGHT_DOWN_CAUSAL}:
        # The mask argument is a fixed triangle in these modes. The mode says in which corner the diagonal is.
        shift = keys - queries if case.sparse_mode == _RIGHT_DOWN_CAUSAL else 0
        return torch.ones(queries, keys, dtype=torch.bool).triu(1 + shift)
    mask = case.mask.bool()
    if case.layout == "TND":
        mask = mask[..., :queries, :keys]
    if case.sparse_mode == 0 and (case.after < keys or case.before < queries):
        distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        mask = mask | (distance > case.after) | (-distance > case.before)
    return mask


def _to_bnsd(case: _Case, x: torch.Tensor) -> torch.Tensor:
    x = wide(x)
    if case.layout == "TND":
        return x.transpose(0, 1)[None]
    if case.layout == "BSND":
        return x.transpose(1, 2)
    if case.layout == "BSH":
        return x.unflatten(-1, (-1, case.head_size)).transpose(1, 2)
    if case.layout == "SBH":
        return x.unflatten(-1, (-1, case.head_size)).permute(1, 2, 0, 3)
    return x


def _from_bnsd(case: _Case, x: torch.Tensor) -> torch.Tensor:
    if case.layout == "TND":
        return x[0].transpose(0, 1)
    if case.layout == "BSND":
        return x.transpose(1, 2)
    if case.layout == "BSH":
        return x.transpose(1, 2).flatten(2)
    if case.layout == "SBH":
        return x.permute(2, 0, 1, 3).flatten(2)
    return x


def _from_statistics(case: _Case, x: torch.Tensor) -> torch.Tensor:
    """Expands (B, N, S, 1) to eight equal lanes; packed sequences get the shape (T, N, 8)."""
    lanes = x.expand(*x.shape[:-1], _LANES)
    return lanes[0].transpose(0, 1) if case.layout == "TND" else lanes


def _to_statistics(case: _Case, x: torch.Tensor) -> torch.Tensor:
    first = x[..., :1]
    return first.transpose(0, 1)[None] if case.layout == "TND" else first


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * scale
    return scores if mask is None else scores.masked_fill(mask, float("-inf"))


def _spread(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeats each key head for the query heads of its group."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _forward(
    case: _Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores = _scores(q, _spread(k, q.shape[1]), case.scale, mask)
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest).nan_to_num(0.0)
    total = weights.sum(-1, keepdim=True)
    probabilities = case.dropped((weights / total).nan_to_num(0.0))
    return probabilities @ _spread(v, q.shape[1]), largest, total


def _backward(
    case: _Case,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    out: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads, groups = q.shape[1], k.shape[1]
    keys, values = _spread(k, heads), _spread(v, heads)
    p = (torch.exp(_scores(q, keys, case.scale, mask) - largest) / total).nan_to_num(0.0)
    dv = case.dropped(p).transpose(-1, -2) @ grad
    dp = case.dropped(grad @ values.transpose(-1, -2))
    ds = p * (dp - (grad * out).sum(-1, keepdim=True)) * case.scale
    dk = ds.transpose(-1, -2) @ q

    def folded(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (groups, heads // groups)).sum(2)

    return ds @ keys, folded(dk), folded(dv)
