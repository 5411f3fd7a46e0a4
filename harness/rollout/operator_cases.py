"""The battery of operators that serving engines call: inputs, and the plain formula of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.rollout import plain

Draw = Callable[[torch.Generator], dict[str, Any]]

HEADS, KEY_HEADS, SIZE, HIDDEN, BLOCK = 4, 2, 16, 32, 4
SCALE = 1 / math.sqrt(SIZE)


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One operator on drawn inputs.

    operator: namespace::name, with overload when it has one. family: what kind of operator it is.
    draw: arguments by name; floating-point tensors are float64 and will be rounded to the tested dtype.
    expected: the plain formula on the same arguments. written: arguments that are the results, in order; none
    when the operator returns them. results: positions of what is compared. host: arguments that stay on the
    host. exact: results are moved or counted, never computed, so they must be equal.
    """

    operator: str
    family: str
    draw: Draw
    expected: Callable[[plain.Values], plain.Tensors]
    variant: str = ""
    written: tuple[str, ...] = ()
    results: tuple[int, ...] = (0,)
    host: frozenset[str] = frozenset()
    exact: bool = False

    @property
    def name(self) -> str:
        """Operator and variant."""
        return f"{self.operator}/{self.variant}" if self.variant else self.operator


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _lengths(generator: torch.Generator, count: int, longest: int) -> list[int]:
    return [int(x) for x in torch.randint(1, longest + 1, (count,), generator=generator)]


def _norm(*names: str, beta: bool = False) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        values: dict[str, Any] = {name: _normal(generator, 5, HIDDEN) for name in names}
        values["gamma"] = 1 + 0.3 * _normal(generator, HIDDEN)
        if beta:
            values["beta"] = _normal(generator, HIDDEN)
        return {**values, "epsilon": 1e-6}

    return draw


def _rotary(*, neox: bool) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        tokens, rotary = 7, SIZE if neox else SIZE // 2
        angles = torch.arange(64, dtype=torch.float64)[:, None] * 0.7 ** torch.arange(rotary // 2)
        return {
            "positions": torch.randint(0, 64, (tokens,), generator=generator),
            "query": _normal(generator, tokens, HEADS * SIZE),
            "key": _normal(generator, tokens, KEY_HEADS * SIZE),
            "head_size": SIZE,
            "cos_sin_cache": torch.cat([angles.cos(), angles.sin()], -1),
            "is_neox_style": neox,
        }

    return draw


def _mrope(generator: torch.Generator) -> dict[str, Any]:
    values = _rotary(neox=True)(generator)
    del values["is_neox_style"]
    return {**values, "rotary_mode": "half"}


def _slots(name: str, *, pair: bool = True) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        values: dict[str, Any] = {"key": _normal(generator, 6, KEY_HEADS, SIZE)}
        if pair:
            values["value"] = _normal(generator, 6, KEY_HEADS, SIZE)
        values["key_cache"] = _normal(generator, 5, BLOCK, KEY_HEADS, SIZE)
        if pair:
            values["value_cache"] = _normal(generator, 5, BLOCK, KEY_HEADS, SIZE)
        slots = torch.randperm(5 * BLOCK, generator=generator)[:6]
        slots[3] = -1
        return {**values, name: slots.to(torch.int32)}

    return draw


def _table(generator: torch.Generator, sequences: int, longest: int) -> torch.Tensor:
    blocks = -(-longest // BLOCK)
    return torch.randperm(sequences * blocks, generator=generator).view(sequences, blocks).to(torch.int32)


def _triangle() -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def _fused(*, paged: bool, decode: bool = False) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        seen = _lengths(generator, 3, 13)
        new = [1] * 3 if decode else [max(1, length - 2) for length in seen] if paged else seen
        values: dict[str, Any] = {
            "query": _normal(generator, sum(new), HEADS, SIZE),
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
        return {**values, "key": _normal(generator, *cache), "value": _normal(generator, *cache)}

    return draw


def _with_sinks(generator: torch.Generator) -> dict[str, Any]:
    values = _fused(paged=True)(generator)
    names = {
        "actual_seq_lengths": "actual_seq_qlen",
        "actual_seq_lengths_kv": "actual_seq_kvlen",
        "num_heads": "num_query_heads",
        "scale": "softmax_scale",
    }
    renamed = {names.get(name, name): value for name, value in values.items()}
    window = {"sparse_mode": 4, "pre_tokens": 4, "next_tokens": 0}
    return {**renamed, **window, "learnable_sink": _normal(generator, HEADS)}


def _atb(*, paged: bool, new: bool, mask: bool) -> Draw:
    """paged: against the cache. new: several new tokens per sequence."""

    def draw(generator: torch.Generator) -> dict[str, Any]:
        seen = torch.tensor(_lengths(generator, 3, 13), dtype=torch.int32)
        counts = (seen - 2).clamp(min=1) if paged and new else seen if new else torch.ones_like(seen)
        tokens = int(counts.sum())
        values: dict[str, Any] = {
            "query": _normal(generator, tokens, HEADS, SIZE),
            "num_heads": HEADS,
            "num_kv_heads": KEY_HEADS,
            "scale_value": SCALE,
            "out": torch.zeros(tokens, HEADS, SIZE, dtype=torch.float64),
        }
        if paged:
            table = _table(generator, 3, 13)
            cache = (table.numel(), BLOCK, KEY_HEADS, SIZE)
            values |= {"key_cache": _normal(generator, *cache), "value_cache": _normal(generator, *cache)}
            values |= {"block_table": table, "context_lens": seen}
        else:
            rows = (tokens, KEY_HEADS, SIZE)
            values |= {"key": _normal(generator, *rows), "value": _normal(generator, *rows)}
        if new:
            values["seq_len"] = counts
        if mask:
            values["mask"] = _triangle()
        return values

    return draw


def _gating(**options: Any) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        return {"x": _normal(generator, 6, 8), "k": 2, **options}

    return draw


def _engine_gating(generator: torch.Generator) -> dict[str, Any]:
    return {
        **_gating()(generator),
        "k_group": 1,
        "group_count": 1,
        "group_select_mode": 1,
        "renorm": 1,
        "norm_type": 0,
        "out_flag": False,
        "routed_scaling_factor": 1.5,
        "eps": 1e-20,
    }


def _biased_gating(generator: torch.Generator) -> dict[str, Any]:
    values = {**_engine_gating(generator), "norm_type": 1}
    return {**values, "bias_opt": 0.5 * _normal(generator, 8)}


def _init_routing(generator: torch.Generator) -> dict[str, Any]:
    choices = torch.stack([torch.randperm(8, generator=generator)[:2] for _ in range(6)])
    return {
        "x": _normal(generator, 6, HIDDEN),
        "expert_idx": choices.to(torch.int32),
        "active_num": 12,
        "expert_num": 8,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, 8],
        "quant_mode": -1,
    }


def _grouped(generator: torch.Generator) -> dict[str, Any]:
    counts = torch.tensor([3, 0, 5, 1])
    return {
        "x": [_normal(generator, 9, HIDDEN)],
        "weight": [_normal(generator, 4, HIDDEN, 2 * SIZE)],
        "group_list": counts,
        "split_item": 2,
        "group_type": 0,
        "group_list_type": 1,
    }


def _unpermute(generator: torch.Generator) -> dict[str, Any]:
    return {
        "permuted_tokens": _normal(generator, 12, HIDDEN),
        "sorted_indices": torch.randperm(12, generator=generator).to(torch.int32),
        "probs": torch.rand(6, 2, generator=generator, dtype=torch.float64),
    }


def _limits(generator: torch.Generator) -> dict[str, Any]:
    # Distinct multiples of 1/8, so that no rounding changes which tokens are the most likely.
    logits = torch.stack([torch.randperm(40, generator=generator) for _ in range(4)]) / 8.0 - 2
    return {
        "logits": logits.double(),
        "p": torch.tensor([0.9, 0.5, 0.05, 0.99], dtype=torch.float64),
        "k": torch.tensor([40, 7, 3, 1], dtype=torch.int32),
    }


def _vocabulary(generator: torch.Generator) -> dict[str, Any]:
    return {
        "input": torch.randint(0, 48, (20,), generator=generator),
        "org_vocab_start_index": 8,
        "org_vocab_end_index": 16,
        "num_org_vocab_padding": 2,
        "added_vocab_start_index": 40,
        "added_vocab_end_index": 44,
    }


def _pair(left: str, right: str, *shapes: tuple[int, ...], **options: Any) -> Draw:
    def draw(generator: torch.Generator) -> dict[str, Any]:
        return {left: _normal(generator, *shapes[0]), right: _normal(generator, *shapes[1]), **options}

    return draw


_LENGTHS = frozenset({"seq_len", "context_lens"})
_FUSED_1, _FUSED_2 = "npu::npu_fused_infer_attention_score", "npu::npu_fused_infer_attention_score_v2"
_IN_PLACE: Mapping[str, Any] = {"written": ("out",), "expected": plain.atb_attention, "host": _LENGTHS}

CASES: tuple[OperatorCase, ...] = (
    OperatorCase(operator="npu::npu_rms_norm", family="norm", draw=_norm("input"), expected=plain.rms_norm),
    OperatorCase(
        operator="npu::npu_add_rms_norm",
        family="norm",
        draw=_norm("x1", "x2"),
        expected=plain.add_rms_norm,
        results=(0, 2),
    ),
    OperatorCase(
        operator="_C_ascend::npu_add_rms_norm_bias",
        family="norm",
        draw=_norm("x1", "x2", beta=True),
        expected=plain.add_rms_norm,
        results=(0, 2),
    ),
    OperatorCase(
        operator="_C_ascend::npu_gemma_rms_norm",
        family="norm",
        draw=_norm("x"),
        expected=plain.gemma_rms_norm,
    ),
    OperatorCase(
        operator="npu::npu_swiglu",
        family="activation",
        draw=lambda generator: {"input": _normal(generator, 5, 2 * HIDDEN)},
        expected=plain.swiglu,
    ),
    *(
        OperatorCase(
            operator="atb::_npu_rotary_embedding",
            variant="halves" if neox else "neighbours",
            family="rotary",
            draw=_rotary(neox=neox),
            expected=plain.rotary,
            written=("query", "key"),
        )
        for neox in (True, False)
    ),
    OperatorCase(
        operator="npu::npu_mrope",
        family="rotary",
        draw=_mrope,
        expected=lambda values: plain.rotary({**values, "is_neox_style": True}),
        results=(0, 1),
    ),
    OperatorCase(
        operator="atb::_npu_reshape_and_cache",
        family="cache",
        draw=_slots("slot_indices"),
        expected=plain.store,
        written=("key_cache", "value_cache"),
        exact=True,
    ),
    OperatorCase(
        operator="atb::_npu_reshape_and_cache_siso",
        family="cache",
        draw=_slots("slot_indices", pair=False),
        expected=plain.store,
        written=("key_cache",),
        exact=True,
    ),
    OperatorCase(
        operator="npu::npu_scatter_pa_kv_cache",
        family="cache",
        draw=_slots("slot_mapping"),
        expected=plain.store,
        written=("key_cache", "value_cache"),
        exact=True,
    ),
    OperatorCase(
        operator=_FUSED_1,
        variant="prefill",
        family="attention",
        draw=_fused(paged=False),
        expected=plain.fused_attention,
    ),
    OperatorCase(
        operator=_FUSED_1,
        variant="chunked",
        family="attention",
        draw=_fused(paged=True),
        expected=plain.fused_attention,
    ),
    OperatorCase(
        operator=_FUSED_1,
        variant="decode",
        family="attention",
        draw=_fused(paged=True, decode=True),
        expected=plain.fused_attention,
    ),
    OperatorCase(
        operator=_FUSED_2,
        variant="sink and window",
        family="attention",
        draw=_with_sinks,
        expected=plain.fused_attention,
    ),
    OperatorCase(
        operator="atb::_npu_paged_attention",
        family="attention",
        draw=_atb(paged=True, new=False, mask=False),
        **_IN_PLACE,
    ),
    OperatorCase(
        operator="atb::_npu_paged_attention_splitfuse",
        family="attention",
        draw=_atb(paged=True, new=True, mask=True),
        **_IN_PLACE,
    ),
    OperatorCase(
        operator="atb::_npu_flash_attention_qlens",
        family="attention",
        draw=_atb(paged=True, new=True, mask=True),
        **_IN_PLACE,
    ),
    OperatorCase(
        operator="atb::_npu_flash_attention",
        family="attention",
        draw=_atb(paged=False, new=True, mask=True),
        **_IN_PLACE,
    ),
    OperatorCase(
        operator="atb::_npu_flash_attention_unpad",
        family="attention",
        draw=_atb(paged=False, new=True, mask=False),
        **_IN_PLACE,
    ),
    OperatorCase(
        operator="aten::mm",
        family="product",
        draw=_pair("self", "mat2", (6, 96), (96, 20)),
        expected=plain.product,
    ),
    OperatorCase(
        operator="aten::matmul",
        family="product",
        draw=_pair("self", "other", (6, 96), (96, 20)),
        expected=plain.product,
    ),
    OperatorCase(
        operator="atb::_npu_matmul_add_fp32",
        family="product",
        draw=lambda generator: {
            **_pair("x", "weight", (24, 6), (24, 10))(generator),
            "C": _normal(generator, 6, 10),
        },
        expected=plain.matmul_add,
        written=("C",),
    ),
    OperatorCase(
        operator="npu::npu_grouped_matmul", family="experts", draw=_grouped, expected=plain.grouped_product
    ),
    OperatorCase(
        operator="npu::npu_moe_gating_top_k_softmax",
        family="routing",
        draw=_gating(),
        expected=plain.gating,
        results=(0, 1),
    ),
    OperatorCase(
        operator="_C_ascend::moe_gating_top_k",
        family="routing",
        draw=_engine_gating,
        expected=plain.gating,
        results=(0, 1),
    ),
    OperatorCase(
        operator="_C_ascend::moe_gating_top_k",
        variant="sigmoid and bias",
        family="routing",
        draw=_biased_gating,
        expected=plain.gating,
        results=(0, 1),
    ),
    *(
        OperatorCase(
            operator=operator,
            family="routing",
            draw=_init_routing,
            expected=plain.sorted_by_expert,
            results=(0, 1, 2),
            exact=True,
        )
        for operator in ("npu::npu_moe_init_routing_v2", "_C_ascend::npu_moe_init_routing_custom")
    ),
    OperatorCase(
        operator="npu::npu_moe_token_unpermute",
        family="experts",
        draw=_unpermute,
        expected=plain.unpermuted,
    ),
    *(
        OperatorCase(operator=operator, family="sampling", draw=_limits, expected=plain.limited, exact=True)
        for operator in ("npu::npu_top_k_top_p", "_C_ascend::npu_apply_top_k_top_p")
    ),
    OperatorCase(
        operator="aten::_log_softmax",
        family="sampling",
        draw=lambda generator: {
            "self": 3 * _normal(generator, 4, 300),
            "dim": -1,
            "half_to_float": False,
        },
        expected=plain.log_softmax,
    ),
    OperatorCase(
        operator="_C_ascend::get_masked_input_and_mask",
        family="sampling",
        draw=_vocabulary,
        expected=plain.own_rows,
        results=(0, 1),
        exact=True,
    ),
)
