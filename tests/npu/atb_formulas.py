"""Formulas in float64 for attention operators of ATB with masks of numbers: see `test_sim_references`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from drawn_inputs import Drawn, Pairs

atb: Any = torch.ops.atb
HEADS, KEY_HEADS, WIDTH, BLOCK, SCALE = 4, 2, 16, 16, 0.3
LATENT, ROPE = 32, 16
LINEAR, ROOT, NORMAL, ALIBI = 4, 5, 1, 2
BOTH = (torch.float32, torch.bfloat16)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries (s, heads, d) to keys (t, key heads, d); added (heads or 1, s, t). And log(sum)."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    scores = torch.einsum("shd,thd->hst", q, k) * SCALE + added
    return torch.einsum("hst,thd->shd", scores.softmax(-1), v), scores.logsumexp(-1).T[..., None]


def _causal(new: int, seen: int) -> torch.Tensor:
    before = torch.arange(seen - new, seen)[:, None] - torch.arange(seen)
    return torch.zeros(new, seen, dtype=torch.float64).masked_fill(before < 0, float("-inf"))[None]


def _distances(new: int, seen: int, kind: int) -> torch.Tensor:
    before = (torch.arange(seen - new, seen)[:, None] - torch.arange(seen)).double()
    return before.clamp(min=0).sqrt() if kind == ROOT else before.clamp(min=0)


def _compressed(kind: int) -> torch.Tensor:
    return _distances(256, 256, kind) + torch.full((256, 256), 6e4).double().triu(1)


def _lengths(drawn: Drawn) -> list[int]:
    return [drawn.size(2, 6), 1, drawn.size(2, 6)]


def _packed(drawn: Drawn, operator: str) -> Pairs:
    """Packed sequences: masks of sequences, of heads, slopes, a compressed causal mask, or none."""
    lengths = _lengths(drawn)
    total, longest = sum(lengths), max(lengths)
    q, k, v = (drawn.normal(total, heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    place, out = drawn.placed, drawn.placed(torch.zeros(total, HEADS, WIDTH))
    slopes = drawn.rand(HEADS)
    heads = {"num_heads": HEADS, "num_kv_heads": KEY_HEADS, "scale_value": SCALE}
    of_sequences = drawn.normal(3, longest, longest).clamp(max=0)
    of_heads = drawn.normal(HEADS, longest, longest)
    length = torch.tensor(lengths, dtype=torch.int32)
    added: Callable[[int, int], torch.Tensor]
    if operator == "_npu_flash_attention_v3":
        atb._npu_flash_attention_v3(
            *(place(q), place(k), place(v), place(torch.ones(128, 128).double().triu(1)), length),
            *(SCALE, HEADS, KEY_HEADS),
            out=out,
        )
        added = lambda _index, n: _causal(n, n)  # noqa: E731
    elif operator == "_npu_flash_attention_unpad_v2":
        atb._npu_flash_attention_unpad_v2(
            place(q), place(k), place(v), length, SCALE, HEADS, KEY_HEADS, kernel_type=2, out=out
        )
        added = lambda _index, n: torch.zeros(1, n, n).double()  # noqa: E731
    else:
        kind = int(operator[-1])
        mask = {NORMAL: of_sequences, ALIBI: of_heads}.get(kind)
        atb._npu_flash_attention_v2(
            *(place(q), place(k), place(v), lengths),
            mask=place(_compressed(kind) if mask is None else mask),
            slopes=place(-slopes).float() if mask is None else None,
            mask_type=kind,
            **heads,
            out=out,
        )
        if kind == NORMAL:
            added = lambda index, n: of_sequences[index, :n, :n][None]  # noqa: E731
        elif kind == ALIBI:
            added = lambda _index, n: of_heads[:, :n, :n]  # noqa: E731
        else:
            added = lambda _index, n: _causal(n, n) - slopes.view(-1, 1, 1) * _distances(n, n, kind)  # noqa: E731
    queries, keys, values = (x.split(lengths) for x in (q, k, v))
    expected = [
        _attention(queries[index], keys[index], values[index], added(index, n))[0]
        for index, n in enumerate(lengths)
    ]
    yield out, torch.cat(expected)


def _cached(
    drawn: Drawn, seen: Sequence[int], *shape: int
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A cache of blocks, the table of blocks, and the rows of each sequence."""
    blocks = 4 * len(seen)
    cache = drawn.normal(blocks, BLOCK, *shape)
    table = drawn.order(blocks).view(len(seen), -1).to(torch.int32)
    rows = [cache[one.long()].flatten(0, 1)[:length] for one, length in zip(table, seen, strict=True)]
    return cache, table, rows


def _against_cache(drawn: Drawn, operator: str) -> Pairs:
    new = [1, 1, 1] if operator == "_npu_paged_attention_v2" else _lengths(drawn)
    seen = [n + drawn.size(0, 20) for n in new]
    q = drawn.normal(sum(new), HEADS, WIDTH)
    keys, table, key_rows = _cached(drawn, seen, KEY_HEADS, WIDTH)
    values = drawn.normal(*keys.shape)
    value_rows = [values[one.long()].flatten(0, 1)[:n] for one, n in zip(table, seen, strict=True)]
    place, out = drawn.placed, drawn.placed(torch.zeros(sum(new), HEADS, WIDTH))
    slopes = drawn.rand(HEADS)
    heads = {"num_heads": HEADS, "num_kv_heads": KEY_HEADS, "scale_value": SCALE}
    added = [_causal(n, s) for n, s in zip(new, seen, strict=True)]
    caches = (place(q), place(keys), place(values), place(table))
    if operator == "_npu_paged_attention_v2":
        biases = drawn.normal(3, HEADS, 1, max(seen))
        atb._npu_paged_attention_v2(
            *(caches[0], caches[1], caches[3], seen),
            value_cache=caches[2],
            mask=place(biases),
            mask_type=ALIBI,
            **heads,
            out=out,
        )
        added = [one[..., :s] for one, s in zip(biases, seen, strict=True)]
    elif operator.startswith("_npu_paged_attention_splitfuse"):
        rows = drawn.normal(sum(new), max(seen))
        causal = torch.ones(128, 128).double().triu(1)
        lengths = (torch.tensor(one, dtype=torch.int32) for one in (seen, new))
        context, queries = lengths
        by_rows = operator == "_npu_paged_attention_splitfuse"
        getattr(atb, operator)(
            *(*caches, context, place(rows if by_rows else causal), queries, KEY_HEADS, HEADS, SCALE), out=out
        )
        if by_rows:
            parts = rows.split(new)
            added = [one[:, :s][None] for one, s in zip(parts, seen, strict=True)]
    else:
        kind = int(operator[-1])
        atb._npu_flash_attention_prefix_v2(
            *(*caches, place(_compressed(kind)), new, seen),
            slopes=place(-slopes).float(),
            mask_type=kind,
            **heads,
            out=out,
        )
        added = [
            one - slopes.view(-1, 1, 1) * _distances(n, s, kind)
            for one, n, s in zip(added, new, seen, strict=True)
        ]
    expected = [_attention(*part)[0] for part in zip(q.split(new), key_rows, value_rows, added, strict=True)]
    yield out, torch.cat(expected)


def _latent(drawn: Drawn, overload: str) -> Pairs:
    seen = [drawn.size(1, 40) for _ in range(3)]
    q, q_rope = drawn.normal(3, HEADS, LATENT), drawn.normal(3, HEADS, ROPE)
    latent, table, rows = _cached(drawn, seen, 1, LATENT)
    ropes = drawn.normal(*latent.shape[:-1], ROPE)
    place = drawn.placed
    given = (*(place(one) for one in (q, q_rope, latent, ropes, table)), seen, HEADS, SCALE, 1)
    out, lse = place(torch.zeros(3, HEADS, LATENT)), place(torch.zeros(3, HEADS, 1))
    operator = getattr(atb.npu_multi_head_latent_attention, overload)
    if overload == "default":
        out = operator(*given)
    elif overload == "out":
        operator(*given, output=out)
    elif overload == "lse":
        out, lse = operator(*given, True, calc_type="calc_type_ring")
    else:
        operator(*given, True, calc_type="calc_type_ring", output=out, lse=lse)
    expected = []
    for index, (one, length) in enumerate(zip(table, seen, strict=True)):
        positions = ropes[one.long()].flatten(0, 1)[:length]
        query = torch.cat((q[index], q_rope[index]), -1)[None]
        keys = torch.cat((rows[index], positions), -1)
        expected.append(_attention(query, keys, rows[index], torch.zeros(1, 1, length).double()))
    yield out, torch.cat([one for one, _ in expected])
    if overload.startswith("lse"):
        yield lse, torch.cat([one for _, one in expected])


def _loaded(drawn: Drawn, *, into: bool) -> Pairs:
    lengths, starts = [drawn.size(0, 20), 3, drawn.size(1, 20)], [BLOCK, 2, 0]
    keys, table, _ = _cached(drawn, lengths, KEY_HEADS, WIDTH)
    values = drawn.normal(*keys.shape)
    place = drawn.placed
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    given = (place(keys), place(values), place(table), place(ends))
    options = {"seq_starts": place(torch.tensor(starts, dtype=torch.int32)), "cumsum": True}
    shape = (sum(lengths), KEY_HEADS, WIDTH)
    found = tuple(place(torch.zeros(*shape)) for _ in range(2))
    if into:
        atb.npu_paged_cache_load(*given, **options, key=found[0], value=found[1])
    else:
        found = atb.npu_paged_cache_load(*given, **options)
    for result, cache in zip(found, (keys, values), strict=True):
        rows = [
            cache[one[start // BLOCK :].long()].flatten(0, 1)[:length]
            for one, start, length in zip(table, starts, lengths, strict=True)
        ]
        yield result, torch.cat(rows)


ATB_FORMULAS: Mapping[str, tuple[tuple[str, ...], Callable[[Drawn], Pairs], tuple[torch.dtype, ...]]] = {
    **{
        f"packed attention, mask type {kind}": (
            ("atb::_npu_flash_attention_v2.out",),
            partial(_packed, operator=f"mask type {kind}"),
            BOTH,
        )
        for kind in (NORMAL, ALIBI, LINEAR, ROOT)
    },
    **{
        f"packed attention {operator}": ((f"atb::{operator}",), partial(_packed, operator=operator), BOTH)
        for operator in ("_npu_flash_attention_v3", "_npu_flash_attention_unpad_v2")
    },
    **{
        f"attention to a cache, mask type {kind}": (
            ("atb::_npu_flash_attention_prefix_v2.out",),
            partial(_against_cache, operator=f"mask type {kind}"),
            BOTH,
        )
        for kind in (LINEAR, ROOT)
    },
    **{
        f"attention to a cache {operator}": (
            (f"atb::{operator}{'.out' if operator == '_npu_paged_attention_v2' else ''}",),
            partial(_against_cache, operator=operator),
            BOTH,
        )
        for operator in (
            "_npu_paged_attention_v2",
            "_npu_paged_attention_splitfuse",
            "_npu_paged_attention_splitfuse_v2",
        )
    },
    **{
        f"latent attention, {overload}": (
            (f"atb::npu_multi_head_latent_attention{'' if overload == 'default' else '.' + overload}",),
            partial(_latent, overload=overload),
            BOTH,
        )
        for overload in ("default", "out", "lse", "lse_out")
    },
    **{
        f"rows of a cache{', into given tensors' if into else ''}": (
            (f"atb::npu_paged_cache_load{'.out' if into else ''}",),
            partial(_loaded, into=into),
            BOTH,
        )
        for into in (False, True)
    },
}
