"""Sparse attention over blocks of keys that were selected for each token (native sparse attention)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import refuse, wide

_COPIES = 8
"""How often CANN stores the largest score and the sum of a row."""


def npu_nsa_select_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention (tokens, heads, d) of each token to its selected blocks; largest score, sum of exponentials.

    topk_indices (tokens, key heads, select_block_count): blocks of select_block_size keys, counted from the
    start of the token's sequence. Lengths are cumulative. The two last results are float32
    (tokens, heads, 8), all 8 alike (op-plugin's test of it).
    """
    _refuse_other_arguments(query, topk_indices, head_num, select_block_count, atten_mask)
    parts = _parts(actual_seq_qlen, actual_seq_kvlen, query, key)
    results = [
        _attention(
            wide(query[rows]),
            wide(key[keys]),
            wide(value[keys]),
            topk_indices[rows],
            scale_value,
            select_block_size,
            query.dtype,
        )
        for rows, keys in parts
    ]
    out, largest, total = (torch.cat(column) for column in zip(*results, strict=True))
    return out.to(query.dtype), _repeated(largest), _repeated(total)


def npu_nsa_select_attention_grad(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_out: torch.Tensor,  # noqa: ARG001 - computed again
    softmax_max: torch.Tensor,  # noqa: ARG001
    softmax_sum: torch.Tensor,  # noqa: ARG001
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value of `npu_nsa_select_attention`, by autograd of its formula."""
    _refuse_other_arguments(query, topk_indices, head_num, select_block_count, atten_mask)
    with torch.enable_grad():
        leaves = [wide(one).detach().requires_grad_() for one in (query, key, value)]
        q, k, v = leaves
        parts = _parts(actual_seq_qlen, actual_seq_kvlen, query, key)
        out = torch.cat(
            [
                _attention(
                    q[rows], k[keys], v[keys], topk_indices[rows], scale_value, select_block_size, q.dtype
                )[0]
                for rows, keys in parts
            ]
        )
        dq, dk, dv = torch.autograd.grad(out, leaves, wide(grad))
    return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype)


def _refuse_other_arguments(
    query: torch.Tensor, selected: torch.Tensor, heads: int, count: int, mask: torch.Tensor | None
) -> None:
    refuse(
        "npu_nsa_select_attention",
        **{
            "atten_mask": mask is not None,
            "other layouts than (tokens, heads, d)": query.dim() != 3,
            "another head_num": query.dim() == 3 and query.shape[1] != heads,
            "another select_block_count": selected.shape[-1] != count,
        },
    )


def _parts(
    query_ends: Sequence[int] | None, key_ends: Sequence[int] | None, query: torch.Tensor, key: torch.Tensor
) -> list[tuple[slice, slice]]:
    """The rows of queries, and of keys, of each sequence."""
    query_ends, key_ends = list(query_ends or [len(query)]), list(key_ends or [len(key)])
    starts = zip([0, *query_ends], [0, *key_ends], strict=True)
    return [
        (slice(start, end), slice(first, last))
        for (start, first), end, last in zip(starts, query_ends, key_ends, strict=False)
    ]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    blocks: torch.Tensor,
    scale: float,
    size: int,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One sequence: attention with probabilities rounded to dtype, largest score, and sum of exponentials."""
    tokens, heads = query.shape[:2]
    groups = key.shape[1]
    places = (blocks.long().unsqueeze(-1) * size + torch.arange(size)).flatten(-2)
    absent = (places < 0) | (places >= key.shape[0])
    places = places.clamp(0, key.shape[0] - 1)
    of_group = torch.arange(groups).unsqueeze(-1)
    grouped = query.view(tokens, groups, heads // groups, -1)
    scores = torch.einsum("tgqd,tgld->tgql", grouped, key[places, of_group]) * scale
    scores = scores.masked_fill(absent.unsqueeze(-2), float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    exponentials = (scores - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    weights = (exponentials / total).to(dtype).to(scores.dtype)
    out = torch.einsum("tgql,tgld->tgqd", weights, value[places, of_group])
    shape = (tokens, heads, -1)
    return out.reshape(shape), largest.reshape(shape), total.reshape(shape)


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return x.float().expand(*x.shape[:-1], _COPIES).contiguous()
