"""Fusion attention, forward and backward, in the layouts BSH, SBH, BSND, BNSD and TND.

Keys and values may have fewer heads than queries (grouped-query attention), and values another head size. The
result of a fully hidden row is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.sim.references.attention_layout import Layout, Visibility
from harness.devices.sim.references.dropout import kept_elements, mask_at
from harness.devices.sim.references.precision import refuse, wide

_NAME = "npu_fusion_attention"
_KEEP_PROB = 9
_SCALED_BEFORE, _SCALED_AFTERWARDS = 0, 1
_ENDLESS = 2147483647

Place = tuple[int, int]
"""Seed and offset of a random generator."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One packed sequence, or a whole batch, in float32 or float64.

    q, k, v: (B, N, S, D), the keys and values with their own heads. hidden: true hides an entry. kept: the
    probabilities that dropout keeps.
    """

    rows: slice
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    hidden: torch.Tensor | None
    kept: torch.Tensor | None

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Repeats each key head for the query heads of its group."""
        heads = self.q.shape[1]
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)

    def folded(self, x: torch.Tensor) -> torch.Tensor:
        """The gradient for keys or values: the sum over the query heads of each group."""
        return x.unflatten(1, (self.k.shape[1], -1)).sum(2)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What the forward and the backward operator have in common.

    pse_type: whether `pse` is added to the scores after they were scaled (0) or before (1). dropout_mask: the
    bits of all sequences, one after the other; without it, they follow from `place`.
    """

    layout: Layout
    visible: Visibility
    scale: float
    keep_prob: float
    pse: torch.Tensor | None
    pse_type: int
    sink: torch.Tensor | None
    dropout_mask: torch.Tensor | None
    place: Place

    def parts(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Iterator[_Part]:
        """The sequences of the batch."""
        layout = self.layout
        key_heads = layout.key_heads(query, key)
        kept, drawn = self._kept(self.elements(query, key)), 0
        for number, span in enumerate(layout.sequences(query, key)):
            batch, queries, keys = span.sizes
            shape = [batch, layout.heads, queries, keys]
            count = batch * layout.heads * queries * keys
            yield _Part(
                rows=span.rows,
                q=layout.to_bnsd(query[span.rows], layout.heads),
                k=layout.to_bnsd(key[span.keys], key_heads),
                v=layout.to_bnsd(value[span.keys], key_heads),
                hidden=self.visible.hidden(queries, keys, number if layout.packed else None),
                kept=None if kept is None else kept[drawn : drawn + count].view(shape),
            )
            drawn += count

    def elements(self, query: torch.Tensor, key: torch.Tensor) -> int:
        """The number of probabilities of all sequences."""
        sizes = [span.sizes for span in self.layout.sequences(query, key)]
        return self.layout.heads * sum(batch * queries * keys for batch, queries, keys in sizes)

    def _kept(self, count: int) -> torch.Tensor | None:
        if self.keep_prob == 1.0:
            return None
        if self.dropout_mask is not None:
            return kept_elements(self.dropout_mask, [count])
        return kept_elements(mask_at([count], 1 - self.keep_prob, *self.place), [count])

    def dropped(self, part: _Part, probabilities: torch.Tensor) -> torch.Tensor:
        """Probabilities, or their gradients, after dropout."""
        return probabilities if part.kept is None else probabilities * part.kept / self.keep_prob

    def scores(self, part: _Part) -> torch.Tensor:
        """The arguments of the softmax."""
        scores = part.q @ part.spread(part.k).transpose(-1, -2)
        if self.pse is not None and self.pse_type == _SCALED_AFTERWARDS:
            scores = scores + wide(self.pse)
        scores = scores * self.scale
        if self.pse is not None and self.pse_type == _SCALED_BEFORE:
            scores = scores + wide(self.pse)
        return scores if part.hidden is None else scores.masked_fill(part.hidden, float("-inf"))

    def sinks(self) -> torch.Tensor | None:
        """The score of each head that takes part in the softmax without a value, as (1, N, 1, 1)."""
        return None if self.sink is None else wide(self.sink).view(1, -1, 1, 1)


def _call(
    query: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    place: Place,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pre_tokens: int = _ENDLESS,
    next_tokens: int = _ENDLESS,
    inner_precise: int = 0,  # noqa: ARG001 - a hint for speed
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | torch.Tensor | None = None,
    actual_seq_kvlen: Sequence[int] | torch.Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,  # noqa: ARG001 - in which stream dropout masks are made
    sync: bool = False,  # noqa: ARG001
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    pse_type: int = _SCALED_AFTERWARDS,
    q_start_idx: Sequence[int] | None = None,  # noqa: ARG001 - of the types of pse that are refused
    kv_start_idx: Sequence[int] | None = None,  # noqa: ARG001
    dropout_mask: torch.Tensor | None = None,
) -> _Call:
    """The arguments of all these operators.

    Types of `pse` are from the documentation of npu_fusion_attention_v2; 2 and 3, which make the positions
    themselves, are refused.
    """
    pse, packed = _filled(pse), input_layout == "TND"
    refuse(
        _NAME,
        padding_mask=_filled(padding_mask) is not None,
        **{
            f"pse_type {pse_type}": pse_type not in {_SCALED_AFTERWARDS, _SCALED_BEFORE},
            "pse in layout TND": pse is not None and packed,
            "compressed pse": pse is not None and _compressed(pse, query, input_layout),
            f"softmax_layout {softmax_layout}": softmax_layout not in {"", "TND" if packed else ""},
        },
    )
    return _Call(
        layout=Layout(
            name=input_layout,
            heads=head_num,
            query_ends=_numbers(actual_seq_qlen),
            key_ends=_numbers(actual_seq_kvlen),
            same_as_input=softmax_layout == "TND",
        ),
        visible=Visibility(
            mask=_filled(atten_mask),
            sparse_mode=sparse_mode,
            before=pre_tokens,
            after=next_tokens,
            prefix=prefix,
        ),
        scale=scale,
        keep_prob=keep_prob,
        pse=pse,
        pse_type=pse_type,
        sink=_filled(sink),
        dropout_mask=_filled(dropout_mask),
        place=place,
    )


def _filled(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor if tensor is not None and tensor.numel() else None


def _numbers(values: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    return None if values is None or len(values) == 0 else [int(value) for value in values]


def _compressed(pse: torch.Tensor, query: torch.Tensor, layout: str) -> bool:
    """Whether `pse` has only the last 1,024 rows of its positions."""
    rows = query.shape[{"BSH": 1, "SBH": 0, "BSND": 1}.get(layout, 2)]
    return int(pse.shape[-2]) not in {1, int(rows)}


def draws_mask(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a forward operator draws the random numbers of dropout."""
    keep_prob = args[_KEEP_PROB] if len(args) > _KEEP_PROB else kwargs.get("keep_prob", 1.0)
    return 0.0 < keep_prob < 1.0 and kwargs.get("dropout_mask") is None


def fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    keep_prob: float = 1.0,
    seed: int = 0,
    offset: int = 0,
    drawn: Place | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """Attention, row maxima and row sums of the softmax (float32, 8 lanes), and an empty tensor.

    The numbers are seed, offset and size of the dropout mask, which the gradient makes again; 0 without
    dropout. drawn: the random numbers for a mask that is not given. seed, offset: those of one that is.
    """
    refuse(_NAME, query_rope=query_rope is not None, key_rope=key_rope is not None)
    place = drawn or (seed, offset)
    call = _call(query, head_num, input_layout, keep_prob=keep_prob, place=place, **options)
    outputs, maxima, sums = [], [], []
    for part in call.parts(query, key, value):
        out, largest, total = _forward(call, part)
        outputs.append(call.layout.from_bnsd(out))
        maxima.append(call.layout.from_statistics(largest))
        sums.append(call.layout.from_statistics(total))
    numbers = (0, 0, 0) if keep_prob == 1.0 else (*place, call.elements(query, key))
    results = _joined(outputs).to(query.dtype), _joined(maxima), _joined(sums)
    return *results, query.new_empty(0), *numbers


def fusion_attention_with_tensors(
    query: torch.Tensor, *args: Any, **options: Any
) -> tuple[torch.Tensor, ...]:
    """`fusion_attention` with seed and offset of the dropout mask as tensors, in place of three numbers."""
    *results, seed, offset, _size = fusion_attention(query, *args, **options)
    return *results, *(torch.tensor([number], dtype=torch.int64) for number in (seed, offset))


def fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    softmax_max: torch.Tensor,
    softmax_sum: torch.Tensor,
    attention_in: torch.Tensor,
    softmax_in: torch.Tensor | None = None,  # noqa: ARG001 - empty in the forward result
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    scale_value: float = 1.0,
    seed: int | torch.Tensor | None = 0,
    offset: int | torch.Tensor | None = 0,
    numels: int = 0,  # noqa: ARG001 - follows from the shapes
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for query, key, value, pse and sink; empty tensors for those of the last two that are absent.

    As in FlashAttention-2 (arXiv 2307.08691, algorithm 2), the probabilities come from the softmax statistics
    of the forward operator, and dS = P * (dP - sum(dO * O)). A wrong forward result therefore also changes
    the gradients.
    """
    refuse(_NAME, query_rope=query_rope is not None, key_rope=key_rope is not None)
    place = int(seed or 0), int(offset or 0)
    call = _call(query, head_num, input_layout, scale=scale_value, place=place, **options)
    layout = call.layout
    grads: tuple[list[torch.Tensor], ...] = ([], [], [])
    positions, sinks = [], []
    for part in call.parts(query, key, value):
        rows = part.rows
        largest, total = (layout.to_statistics(x[rows]) for x in (softmax_max, softmax_sum))
        gradient, out = (layout.to_bnsd(x[rows], layout.heads) for x in (dy, attention_in))
        parts = _backward(call, part, gradient, out, largest, total)
        for list_, grad in zip(grads, parts[:3], strict=True):
            list_.append(layout.from_bnsd(grad))
        positions.append(parts[3])
        sinks.append(parts[4])
    dq, dk, dv = (_joined(list_).to(query.dtype) for list_ in grads)
    dpse = query.new_empty(0) if call.pse is None else positions[0].sum_to_size(call.pse.shape)
    dsink = query.new_empty(0) if call.sink is None else sum(sinks)
    return dq, dk, dv, dpse.to(query.dtype), dsink


def fusion_attention_grad_v2(query: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """`fusion_attention_grad` with empty gradients for the rotary parts before that of the sink."""
    *grads, dsink = fusion_attention_grad(query, *args, **options)
    return *grads, query.new_empty(0), query.new_empty(0), dsink


def npu_ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    *,
    actual_seq_qlen: torch.Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys, from the results for each of them.

    The formula is forward_update_without_fused of MindSpeed (mindspeed/core/context_parallel/utils.py).
    actual_seq_qlen: where the sequences of TND end; MindSpeed begins it with 0.
    """
    ends = _numbers(actual_seq_qlen)
    layout = Layout(
        name=input_layout,
        heads=prev_softmax_max.shape[1],
        query_ends=ends,
        key_ends=ends,
        same_as_input=input_softmax_layout == "TND",
    )
    outputs, maxima, sums = [], [], []
    for rows, _keys, _sizes in layout.sequences(prev_attn_out, prev_attn_out):
        outs = [layout.to_bnsd(x[rows], layout.heads) for x in (prev_attn_out, cur_attn_out)]
        largest = [layout.to_statistics(x[rows]) for x in (prev_softmax_max, cur_softmax_max)]
        totals = [layout.to_statistics(x[rows]) for x in (prev_softmax_sum, cur_softmax_sum)]
        highest = torch.maximum(*largest)
        scaled = [total * torch.exp(one - highest) for total, one in zip(totals, largest, strict=True)]
        total = scaled[0] + scaled[1]
        outputs.append(
            layout.from_bnsd(sum(out * part / total for out, part in zip(outs, scaled, strict=True)))
        )
        maxima.append(layout.from_statistics(highest))
        sums.append(layout.from_statistics(total))
    return _joined(outputs).to(prev_attn_out.dtype), _joined(maxima), _joined(sums)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()


def _forward(call: _Call, part: _Part) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scores, sinks = call.scores(part), call.sinks()
    if not part.k.shape[2]:
        # Queries without keys: the result is zero.
        scores = torch.nn.functional.pad(scores, (0, 1), value=float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        largest = torch.maximum(largest, sinks)
    weights = torch.exp(scores - largest).nan_to_num(0.0)[..., : part.k.shape[2]]
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - largest)
    probabilities = call.dropped(part, (weights / total).nan_to_num(0.0))
    return probabilities @ part.spread(part.v), largest, total


def _backward(
    call: _Call,
    part: _Part,
    gradient: torch.Tensor,
    out: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for the queries, keys, values, scores (as far as pse changes them) and sinks."""
    p = (torch.exp(call.scores(part) - largest) / total).nan_to_num(0.0)
    dv = call.dropped(part, p).transpose(-1, -2) @ gradient
    dp = call.dropped(part, gradient @ part.spread(part.v).transpose(-1, -2))
    mean = (gradient * out).sum(-1, keepdim=True)
    ds = p * (dp - mean)
    scaled = ds * call.scale
    sinks = call.sinks()
    dsink = (
        mean.new_empty(0) if sinks is None else -(torch.exp(sinks - largest) / total * mean).sum((0, 2, 3))
    )
    dpse = scaled if call.pse_type == _SCALED_AFTERWARDS else ds
    dk = scaled.transpose(-1, -2) @ part.q
    return scaled @ part.spread(part.k), part.folded(dk), part.folded(dv), dpse, dsink
