"""Plain formulas of the operators of serving engines, computed row by row, head by head, token by token.

They share no code with the simulated device's references, so that a misunderstanding of an operator would
have to occur twice. Tensors are float64, except for indices and counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

Values = Mapping[str, Any]
Tensors = tuple[Any, ...]


def rms_norm(values: Values) -> Tensors:
    """y = x / sqrt(mean(x^2) + epsilon) * gamma."""
    x = values["input"]
    return (x / torch.sqrt((x * x).mean(-1, keepdim=True) + values["epsilon"]) * values["gamma"],)


def add_rms_norm(values: Values) -> Tensors:
    """RMS norm of x1 + x2, plus beta if given; and the sum."""
    total = values["x1"] + values["x2"]
    (y,) = rms_norm({**values, "input": total})
    return (y + values["beta"] if "beta" in values else y), total


def gemma_rms_norm(values: Values) -> Tensors:
    """RMS norm with 1 + gamma."""
    return rms_norm({**values, "input": values["x"], "gamma": 1 + values["gamma"]})


def swiglu(values: Values) -> Tensors:
    """silu of the first half, times the second half."""
    gate, up = values["input"].chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up,)


def matmul_add(values: Values) -> Tensors:
    """C + x^T weight."""
    return (values["C"] + values["x"].t() @ values["weight"],)


def product(values: Values) -> Tensors:
    """The matmul of both arguments."""
    return (values["self"] @ values.get("mat2", values.get("other")),)


def log_softmax(values: Values) -> Tensors:
    """x - log(sum(exp(x)))."""
    return (functional.log_softmax(values["self"], values["dim"]),)


def rotary(values: Values) -> Tensors:
    """Rotate each pair of each head by the angle of its position; pairs are (i, i + r/2) or (2i, 2i + 1)."""
    size, cache = values["head_size"], values["cos_sin_cache"]
    half = cache.shape[-1] // 2
    cos, sin = cache[values["positions"], :half], cache[values["positions"], half:]
    places = torch.arange(half)
    first, second = (places, places + half) if values["is_neox_style"] else (2 * places, 2 * places + 1)
    results = []
    for name in ("query", "key"):
        heads = values[name].unflatten(-1, (-1, size))
        turned = heads.clone()
        for head in range(heads.shape[1]):
            a, b = heads[:, head][:, first], heads[:, head][:, second]
            turned[:, head, first] = a * cos - b * sin
            turned[:, head, second] = b * cos + a * sin
        results.append(turned.flatten(-2))
    return tuple(results)


def store(values: Values) -> Tensors:
    """Write the rows of key and value into their slots; negative slots are padding."""
    results = []
    slots = values["slot_indices" if "slot_indices" in values else "slot_mapping"].tolist()
    for rows, name in ((values["key"], "key_cache"), (values.get("value"), "value_cache")):
        if rows is None:
            continue
        cache = values[name].clone()
        for row, slot in zip(rows, slots, strict=True):
            if slot >= 0:
                cache[slot // cache.shape[1], slot % cache.shape[1]] = row
        results.append(cache)
    return tuple(results)


def attention(
    query: Any, keys: Any, values: Any, scale: float, *, causal: bool, window: int = 1 << 30, sink: Any = None
) -> Any:
    """Attention of queries (S, N, D) to keys (K, G, D); the last query has the position of the last key.

    window: a query attends to keys that are at most this many positions older. sink (N,): an additional score
    for each head, without a value.
    """
    heads, shared = query.shape[1], query.shape[1] // keys.shape[1]
    columns = []
    for head in range(heads):
        scores = query[:, head] @ keys[:, head // shared].t() * scale
        if causal:
            age = (torch.arange(len(query))[:, None] + len(keys) - len(query)) - torch.arange(len(keys))[None]
            scores = scores.masked_fill((age < 0) | (age > window), float("-inf"))
        if sink is not None:
            scores = torch.cat([scores, sink[head].expand(len(query), 1)], -1)
        weights = torch.softmax(scores, -1)[:, : len(keys)]
        columns.append(weights @ values[:, head // shared])
    return torch.stack(columns, 1)


def from_cache(cache: Any, table: Any, length: int, heads: int) -> Any:
    """The rows (length, heads, D) of one sequence, read from its slots one by one."""
    size = cache.shape[1]
    rows = [cache[int(table[place // size]), place % size] for place in range(length)]
    return torch.stack(rows).reshape(length, heads, -1)


def fused_attention(values: Values) -> Tensors:
    """Attention in layout TND: packed sequences, with keys packed or in a paged cache."""
    second = "softmax_scale" in values
    names = (
        ("actual_seq_qlen", "actual_seq_kvlen") if second else ("actual_seq_lengths", "actual_seq_lengths_kv")
    )
    return packed_attention(
        values,
        _lengths(values[names[0]]),
        values[names[1]] if "block_table" in values else _lengths(values[names[1]]),
        values["softmax_scale" if second else "scale"],
        causal=values["sparse_mode"] != 0,
    )


def atb_attention(values: Values) -> Tensors:
    """ATB attention: lengths are per sequence, not cumulative; without `seq_len` each has one new token."""
    seen = values.get("context_lens", values.get("seq_len"))
    new = values.get("seq_len", [1] * len(seen))
    names = {
        "key": values.get("key", values.get("key_cache")),
        "value": values.get("value", values.get("value_cache")),
    }
    return packed_attention(
        {**values, **names, "num_key_value_heads": values["num_kv_heads"]},
        [int(x) for x in new],
        [int(x) for x in seen],
        values["scale_value"],
        causal="mask" in values or "context_lens" in values,
    )


def packed_attention(
    values: Values, new: Sequence[int], seen: Sequence[int], scale: float, *, causal: bool
) -> Tensors:
    """Attention of the new tokens of each sequence to the keys of this sequence."""
    heads = values["num_key_value_heads"]
    window = values.get("pre_tokens", 1 << 30)
    results, row, key_row = [], 0, 0
    for index, (count, length) in enumerate(zip(new, seen, strict=True)):
        if "block_table" in values:
            keys, vals = (
                from_cache(values[name], values["block_table"][index], length, heads)
                for name in ("key", "value")
            )
        else:
            keys, vals = (values[name][key_row : key_row + length] for name in ("key", "value"))
        query = values["query"][row : row + count]
        results.append(
            attention(
                query, keys, vals, scale, causal=causal, window=window, sink=values.get("learnable_sink")
            )
        )
        row, key_row = row + count, key_row + length
    return (torch.cat(results),)


def gating(values: Values) -> Tensors:
    """The weights of the k experts with the largest scores, in descending order, and their numbers."""
    scores = torch.softmax(values["x"], -1) if not values.get("norm_type") else torch.sigmoid(values["x"])
    preference = scores + values["bias_opt"] if "bias_opt" in values else scores
    weights, experts = [], []
    for row, liked in zip(scores, preference, strict=True):
        chosen = sorted(range(len(row)), key=lambda expert: -float(liked[expert]))[: values["k"]]
        picked = row[chosen]
        if values.get("renorm") or values.get("norm_type"):
            picked = picked / picked.sum()
        weights.append(picked * values.get("routed_scaling_factor", 1.0))
        experts.append(torch.tensor(chosen))
    return torch.stack(weights), torch.stack(experts)


def sorted_by_expert(values: Values) -> Tensors:
    """Rows of tokens ordered by expert, the new position of each (token, expert), and tokens per expert."""
    choices = [
        (int(expert), token * values["expert_idx"].shape[1] + place)
        for token, row in enumerate(values["expert_idx"])
        for place, expert in enumerate(row)
    ]
    order = [entry for _, entry in sorted(choices)]
    went = torch.empty(len(order), dtype=torch.int64)
    went[order] = torch.arange(len(order))
    counts = [sum(expert == wanted for expert, _ in choices) for wanted in range(values["expert_num"])]
    per_token = values["expert_idx"].shape[1]
    return values["x"][[entry // per_token for entry in order]], went, torch.tensor(counts)


def grouped_product(values: Values) -> Tensors:
    """The matmul of each expert's rows with its matrix."""
    row, results = 0, []
    for expert, count in enumerate(values["group_list"].tolist()):
        results.append(values["x"][0][row : row + count] @ values["weight"][0][expert])
        row += count
    return (torch.cat(results),)


def unpermuted(values: Values) -> Tensors:
    """For each token in the original order, the weighted sum of the rows of its experts."""
    probs = values["probs"]
    rows = values["permuted_tokens"][values["sorted_indices"].long()].unflatten(0, probs.shape)
    return (
        torch.stack(
            [sum(p * r for p, r in zip(*pair, strict=True)) for pair in zip(probs, rows, strict=True)]
        ),
    )


def limited(values: Values) -> Tensors:
    """Logits after top-k and top-p; those of excluded tokens are -inf."""
    results = values["logits"].clone()
    for row, logits in enumerate(values["logits"]):
        order = torch.argsort(logits, descending=True)[: int(values["k"][row])]
        chances = torch.softmax(logits[order], -1)
        before = torch.cat([chances.new_zeros(1), chances.cumsum(-1)[:-1]])
        kept = order[before < values["p"][row]]
        hidden = torch.ones_like(logits, dtype=torch.bool)
        hidden[kept] = False
        results[row][hidden] = float("-inf")
    return (results,)


def ascending(values: Values) -> Tensors:
    """Each row sorted in ascending order, and the indices of its numbers."""
    places = torch.tensor([sorted(range(len(row)), key=row.__getitem__) for row in values["self"].tolist()])
    return values["self"].gather(-1, places), places


def own_rows(values: Values) -> Tensors:
    """The row of each token in this card's part of the vocabulary, and a mask of the tokens it lacks."""
    original = range(values["org_vocab_start_index"], values["org_vocab_end_index"])
    added = range(values["added_vocab_start_index"], values["added_vocab_end_index"])
    held = [*original, *[None] * values["num_org_vocab_padding"], *added]
    tokens = values["input"].tolist()
    rows = [held.index(token) if token in held else 0 for token in tokens]
    missing = [token not in held for token in tokens]
    return torch.tensor(rows), torch.tensor(missing)


def embedded(values: Values) -> Tensors:
    """The row of the embedding table for each token."""
    return (torch.stack([values["weight"][token] for token in values["indices"].tolist()]),)


def blanked(values: Values) -> Tensors:
    """Replace the masked rows by `value`."""
    rows = zip(values["self"], values["mask"].flatten().tolist(), strict=True)
    return (torch.stack([torch.full_like(row, values["value"]) if masked else row for row, masked in rows]),)


def _lengths(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
