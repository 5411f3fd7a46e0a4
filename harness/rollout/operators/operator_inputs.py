"""Inputs of the operator test battery: random tensors with the shapes that serving engines use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Arguments = dict[str, Any]
"""Arguments of an operator by name: tensors, numbers, texts and lists."""
Draw = Callable[[torch.Generator], Arguments]

HEADS, KEY_HEADS, SIZE, HIDDEN, BLOCK = 4, 2, 16, 32, 4
SCALE = 1 / math.sqrt(SIZE)


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """A tensor of standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _lengths(generator: torch.Generator, count: int, longest: int) -> list[int]:
    return [int(x) for x in torch.randint(1, longest + 1, (count,), generator=generator)]


def norm(*names: str, beta: bool = False) -> Draw:
    """Tensors (5, hidden) of these names, gamma, epsilon and, with `beta`, beta."""

    def draw(generator: torch.Generator) -> Arguments:
        values: Arguments = {name: normal(generator, 5, HIDDEN) for name in names}
        values["gamma"] = 1 + 0.3 * normal(generator, HIDDEN)
        if beta:
            values["beta"] = normal(generator, HIDDEN)
        return {**values, "epsilon": 1e-6}

    return draw


def rotary(*, neox: bool) -> Draw:
    """Queries and keys with positions, and the table of rotation angles.

    neox: the rotated pairs are elements i and i + SIZE / 2 of a head; otherwise the neighbours 2 i and
    2 i + 1 in its first half.
    """

    def draw(generator: torch.Generator) -> Arguments:
        tokens, rotated = 7, SIZE if neox else SIZE // 2
        angles = torch.arange(64, dtype=torch.float64)[:, None] * 0.7 ** torch.arange(rotated // 2)
        return {
            "positions": torch.randint(0, 64, (tokens,), generator=generator),
            "query": normal(generator, tokens, HEADS * SIZE),
            "key": normal(generator, tokens, KEY_HEADS * SIZE),
            "head_size": SIZE,
            "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], -1),
            "is_neox_style": neox,
        }

    return draw


def engine_rotary(*, neox: bool) -> Draw:
    """The arguments of `rotary` for vllm-ascend's operator, whose table can cover a part of a head."""

    def draw(generator: torch.Generator) -> Arguments:
        values = rotary(neox=neox)(generator)
        return {**values, "rotary_dim": values["cos_sin_cache"].shape[-1]}

    return draw


def mrope(generator: torch.Generator) -> Arguments:
    """The arguments of `rotary` for npu_mrope, without sections."""
    values = rotary(neox=True)(generator)
    del values["is_neox_style"]
    return {**values, "rotary_mode": "half"}


def slots(name: str, *, pair: bool = True) -> Draw:
    """Rows for a paged cache and their slots, of which one is padding. pair: with values."""

    def draw(generator: torch.Generator) -> Arguments:
        values: Arguments = {"key": normal(generator, 6, KEY_HEADS, SIZE)}
        if pair:
            values["value"] = normal(generator, 6, KEY_HEADS, SIZE)
        values["key_cache"] = normal(generator, 5, BLOCK, KEY_HEADS, SIZE)
        if pair:
            values["value_cache"] = normal(generator, 5, BLOCK, KEY_HEADS, SIZE)
        slots = torch.randperm(5 * BLOCK, generator=generator)[:6]
        slots[3] = -1
        return {**values, name: slots.to(torch.int32)}

    return draw


def _table(generator: torch.Generator, sequences: int, longest: int) -> torch.Tensor:
    blocks = -(-longest // BLOCK)
    return torch.randperm(sequences * blocks, generator=generator).view(sequences, blocks).to(torch.int32)


def _triangle() -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def fused(*, paged: bool, decode: bool = False) -> Draw:
    """Three sequences in layout TND, with keys packed or in a paged cache. decode: one new token each."""

    def draw(generator: torch.Generator) -> Arguments:
        seen = _lengths(generator, 3, 13)
        new = [1] * 3 if decode else [max(1, length - 2) for length in seen] if paged else seen
        values: Arguments = {
            "query": normal(generator, sum(new), HEADS, SIZE),
            "atten_mask": _triangle(),
            "actual_seq_lengths": torch.tensor(new).cumsum(0).tolist(),
            "actual_seq_lengths_kv": seen if paged else torch.tensor(seen).cumsum(0).tolist(),
            "num_heads": HEADS,
            "num_key_value_heads": KEY_HEADS,
            "scale": SCALE,
            "input_layout": "TND",
            "sparse_mode": 3,
        }
        if paged:
            table = _table(generator, 3, 13)
            cache = (table.numel(), BLOCK, KEY_HEADS * SIZE)
            values |= {"block_table": table, "block_size": BLOCK}
        else:
            cache = (sum(seen), KEY_HEADS, SIZE)
        return {**values, "key": normal(generator, *cache), "value": normal(generator, *cache)}

    return draw


def with_sinks(generator: torch.Generator) -> Arguments:
    """The arguments of `fused` for version 2 of the operator, with sinks and a window of four."""
    values = fused(paged=True)(generator)
    names = {
        "actual_seq_lengths": "actual_seq_qlen",
        "actual_seq_lengths_kv": "actual_seq_kvlen",
        "num_heads": "num_query_heads",
        "scale": "softmax_scale",
    }
    renamed = {names.get(name, name): value for name, value in values.items()}
    window = {"sparse_mode": 4, "pre_tokens": 4, "next_tokens": 0}
    return {**renamed, **window, "learnable_sink": normal(generator, HEADS)}


def atb(*, paged: bool, new: bool, mask: bool) -> Draw:
    """Three sequences for ATB operators. paged: keys in a cache. new: several new tokens per sequence."""

    def draw(generator: torch.Generator) -> Arguments:
        seen = torch.tensor(_lengths(generator, 3, 13), dtype=torch.int32)
        counts = (seen - 2).clamp(min=1) if paged and new else seen if new else torch.ones_like(seen)
        tokens = int(counts.sum())
        values: Arguments = {
            "query": normal(generator, tokens, HEADS, SIZE),
            "num_heads": HEADS,
            "num_kv_heads": KEY_HEADS,
            "scale_value": SCALE,
            "out": torch.zeros(tokens, HEADS, SIZE, dtype=torch.float64),
        }
        if paged:
            table = _table(generator, 3, 13)
            cache = (table.numel(), BLOCK, KEY_HEADS, SIZE)
            values |= {"key_cache": normal(generator, *cache), "value_cache": normal(generator, *cache)}
            values |= {"block_table": table, "context_lens": seen}
        else:
            rows = (tokens, KEY_HEADS, SIZE)
            values |= {"key": normal(generator, *rows), "value": normal(generator, *rows)}
        if new:
            values["seq_len"] = counts
        if mask:
            values["mask"] = _triangle()
        return values

    return draw


def gating(**options: Any) -> Draw:
    """Router scores (6 tokens, 8 experts), two experts per token."""

    def draw(generator: torch.Generator) -> Arguments:
        return {"x": normal(generator, 6, 8), "k": 2, **options}

    return draw


def engine_gating(generator: torch.Generator) -> Arguments:
    """The arguments of `gating` for vllm-ascend's kernel."""
    return {
        **gating()(generator),
        "k_group": 1,
        "group_count": 1,
        "group_select_mode": 1,
        "renorm": 1,
        "norm_type": 0,
        "out_flag": False,
        "routed_scaling_factor": 1.5,
        "eps": 1e-20,
    }


def biased_gating(generator: torch.Generator) -> Arguments:
    """The arguments of `engine_gating` with sigmoid and a bias that changes the selected experts."""
    values = {**engine_gating(generator), "norm_type": 1}
    return {**values, "bias_opt": 0.5 * normal(generator, 8)}


def init_routing(generator: torch.Generator) -> Arguments:
    """Six tokens and the two experts of each."""
    choices = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(6)])
    return {
        "x": normal(generator, 6, HIDDEN),
        "expert_idx": choices.to(torch.int32),
        "active_num": 12,
        "expert_num": 8,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, 8],
        "quant_mode": -1,
    }


def grouped(generator: torch.Generator) -> Arguments:
    """Rows for four experts, one of which has no rows."""
    counts = torch.tensor([3, 0, 5, 1])
    return {
        "x": [normal(generator, 9, HIDDEN)],
        "weight": [normal(generator, 4, HIDDEN, 2 * SIZE)],
        "group_list": counts,
        "split_item": 2,
        "group_type": 0,
        "group_list_type": 1,
    }


def unpermute(generator: torch.Generator) -> Arguments:
    """Rows of six tokens with two experts each, ordered by expert, and their weights."""
    return {
        "permuted_tokens": normal(generator, 12, HIDDEN),
        "sorted_indices": torch.randperm(12, generator=generator).to(torch.int32),
        "probs": torch.rand(6, 2, generator=generator, dtype=torch.float64),
    }


def limits(generator: torch.Generator) -> Arguments:
    """Logits with top-k and top-p for each row."""
    # Distinct multiples of 1/8, so that no rounding changes which tokens are the most likely.
    logits = torch.stack([torch.randperm(40, generator=generator) for _ in range(4)]) / 8.0 - 2
    return {
        "logits": logits.double(),
        "p": torch.tensor([0.9, 0.5, 0.05, 0.99], dtype=torch.float64),
        "k": torch.tensor([40, 7, 3, 1], dtype=torch.int32),
    }


def shuffled(generator: torch.Generator) -> Arguments:
    """Rows of numbers that stay distinct when rounded."""
    return {"self": limits(generator)["logits"], "dim": -1, "descending": False}


def vocabulary(generator: torch.Generator) -> Arguments:
    """Token ids, and the range of the vocabulary on this card."""
    return {
        "input": torch.randint(0, 48, (20,), generator=generator),
        "org_vocab_start_index": 8,
        "org_vocab_end_index": 16,
        "num_org_vocab_padding": 2,
        "added_vocab_start_index": 40,
        "added_vocab_end_index": 44,
    }


def embedding(generator: torch.Generator) -> Arguments:
    """An embedding table of 48 tokens, and the token ids of a batch."""
    return {
        "weight": normal(generator, 48, HIDDEN),
        "indices": torch.randint(0, 48, (20,), generator=generator),
    }


def tokens_of_other_ranks(generator: torch.Generator) -> Arguments:
    """Embeddings (tokens, hidden), and a mask of the tokens whose rows are on another card."""
    return {
        "self": normal(generator, 20, HIDDEN),
        "mask": torch.randint(0, 2, (20, 1), generator=generator).bool(),
        "value": 0,
    }


def pair(left: str, right: str, *shapes: tuple[int, ...], **options: Any) -> Draw:
    """Two tensors of these names and shapes, and options."""

    def draw(generator: torch.Generator) -> Arguments:
        return {left: normal(generator, *shapes[0]), right: normal(generator, *shapes[1]), **options}

    return draw
