"""The cases of the operator test battery: inputs and plain formula of each operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.rollout.operators import operator_inputs as inputs
from harness.rollout.operators import plain_operators


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One operator with random inputs.

    operator: namespace::name, or triton::name for a kernel. through: the operator of the engine that launches
    the kernel. overload: the overload that engines call. family: faults are injected into a whole family.
    draw: makes the arguments; floating-point tensors are float64 and are then rounded to the tested dtype.
    expected: computes the plain formula with the same arguments. written: arguments that contain the results,
    if the operator does not return them. results: positions of the compared results. host: arguments that
    stay on the host. exact: the operator only moves or counts values, so results must be equal.
    """

    operator: str
    family: str
    draw: inputs.Draw
    expected: Callable[[plain_operators.Values], plain_operators.Tensors]
    variant: str = ""
    written: tuple[str, ...] = ()
    results: tuple[int, ...] = (0,)
    host: frozenset[str] = frozenset()
    exact: bool = False
    through: str = ""
    overload: str = "default"

    @property
    def name(self) -> str:
        """The operator and its variant."""
        return f"{self.operator}/{self.variant}" if self.variant else self.operator


def _atb_attention(name: str, *, paged: bool, new: bool, mask: bool) -> OperatorCase:
    return OperatorCase(
        operator=f"atb::{name}",
        family="attention",
        draw=inputs.atb(paged=paged, new=new, mask=mask),
        expected=plain_operators.atb_attention,
        written=("out",),
        host=frozenset({"seq_len", "context_lens"}),
    )


def _fused_attention(variant: str, draw: inputs.Draw, *, version: str = "") -> OperatorCase:
    return OperatorCase(
        operator=f"npu::npu_fused_infer_attention_score{version}",
        variant=variant,
        family="attention",
        draw=draw,
        expected=plain_operators.fused_attention,
    )


CASES: tuple[OperatorCase, ...] = (
    OperatorCase(
        operator="npu::npu_rms_norm",
        family="norm",
        draw=inputs.norm("input"),
        expected=plain_operators.rms_norm,
    ),
    OperatorCase(
        operator="npu::npu_add_rms_norm",
        family="norm",
        draw=inputs.norm("x1", "x2"),
        expected=plain_operators.add_rms_norm,
        results=(0, 2),
    ),
    OperatorCase(
        operator="_C_ascend::npu_add_rms_norm_bias",
        family="norm",
        draw=inputs.norm("x1", "x2", beta=True),
        expected=plain_operators.add_rms_norm,
        results=(0, 2),
    ),
    OperatorCase(
        operator="_C_ascend::npu_gemma_rms_norm",
        family="norm",
        draw=inputs.norm("x"),
        expected=plain_operators.gemma_rms_norm,
    ),
    OperatorCase(
        operator="npu::npu_swiglu",
        family="activation",
        draw=lambda generator: {"input": inputs.normal(generator, 5, 2 * inputs.HIDDEN)},
        expected=plain_operators.swiglu,
    ),
    *(
        OperatorCase(
            operator="atb::_npu_rotary_embedding",
            variant="halves" if neox else "neighbours",
            family="rotary",
            draw=inputs.rotary(neox=neox),
            expected=plain_operators.rotary,
            written=("query", "key"),
        )
        for neox in (True, False)
    ),
    *(
        OperatorCase(
            operator="triton::_triton_rope",
            variant="halves" if neox else "neighbours",
            family="rotary",
            draw=inputs.engine_rotary(neox=neox),
            expected=plain_operators.rotary,
            results=(0, 1),
            through="vllm::npu_rotary_embedding",
        )
        for neox in (True, False)
    ),
    OperatorCase(
        operator="npu::npu_mrope",
        family="rotary",
        draw=inputs.mrope,
        expected=lambda values: plain_operators.rotary({**values, "is_neox_style": True}),
        results=(0, 1),
    ),
    OperatorCase(
        operator="atb::_npu_reshape_and_cache",
        family="cache",
        draw=inputs.slots("slot_indices"),
        expected=plain_operators.store,
        written=("key_cache", "value_cache"),
        exact=True,
    ),
    OperatorCase(
        operator="atb::_npu_reshape_and_cache_siso",
        family="cache",
        draw=inputs.slots("slot_indices", pair=False),
        expected=plain_operators.store,
        written=("key_cache",),
        exact=True,
    ),
    OperatorCase(
        operator="npu::npu_scatter_pa_kv_cache",
        family="cache",
        draw=inputs.slots("slot_mapping"),
        expected=plain_operators.store,
        written=("key_cache", "value_cache"),
        exact=True,
    ),
    _fused_attention("prefill", inputs.fused(paged=False)),
    _fused_attention("chunked", inputs.fused(paged=True)),
    _fused_attention("decode", inputs.fused(paged=True, decode=True)),
    _fused_attention("sink and window", inputs.with_sinks, version="_v2"),
    _atb_attention("_npu_paged_attention", paged=True, new=False, mask=False),
    _atb_attention("_npu_paged_attention_splitfuse", paged=True, new=True, mask=True),
    _atb_attention("_npu_flash_attention_qlens", paged=True, new=True, mask=True),
    _atb_attention("_npu_flash_attention", paged=False, new=True, mask=True),
    _atb_attention("_npu_flash_attention_unpad", paged=False, new=True, mask=False),
    OperatorCase(
        operator="aten::mm",
        family="product",
        draw=inputs.pair("self", "mat2", (6, 96), (96, 20)),
        expected=plain_operators.product,
    ),
    OperatorCase(
        operator="aten::matmul",
        family="product",
        draw=inputs.pair("self", "other", (6, 96), (96, 20)),
        expected=plain_operators.product,
    ),
    OperatorCase(
        operator="atb::_npu_matmul_add_fp32",
        family="product",
        draw=lambda generator: {
            **inputs.pair("x", "weight", (24, 6), (24, 10))(generator),
            "C": inputs.normal(generator, 6, 10),
        },
        expected=plain_operators.matmul_add,
        written=("C",),
    ),
    OperatorCase(
        operator="npu::npu_grouped_matmul",
        family="experts",
        draw=inputs.grouped,
        expected=plain_operators.grouped_product,
    ),
    OperatorCase(
        operator="npu::npu_moe_gating_top_k_softmax",
        family="routing",
        draw=inputs.gating(),
        expected=plain_operators.gating,
        results=(0, 1),
    ),
    OperatorCase(
        operator="_C_ascend::moe_gating_top_k",
        family="routing",
        draw=inputs.engine_gating,
        expected=plain_operators.gating,
        results=(0, 1),
    ),
    OperatorCase(
        operator="_C_ascend::moe_gating_top_k",
        variant="sigmoid and bias",
        family="routing",
        draw=inputs.biased_gating,
        expected=plain_operators.gating,
        results=(0, 1),
    ),
    *(
        OperatorCase(
            operator=operator,
            family="dispatch",
            draw=inputs.init_routing,
            expected=plain_operators.sorted_by_expert,
            results=(0, 1, 2),
            exact=True,
        )
        for operator in ("npu::npu_moe_init_routing_v2", "_C_ascend::npu_moe_init_routing_custom")
    ),
    OperatorCase(
        operator="npu::npu_moe_token_unpermute",
        family="dispatch",
        draw=inputs.unpermute,
        expected=plain_operators.unpermuted,
    ),
    *(
        OperatorCase(
            operator=operator,
            family="choice",
            draw=inputs.limits,
            expected=plain_operators.limited,
            exact=True,
        )
        for operator in ("npu::npu_top_k_top_p", "_C_ascend::npu_apply_top_k_top_p")
    ),
    # Used for top-k and top-p by releases without an operator for them (vllm-ascend 0.13.0).
    OperatorCase(
        operator="aten::sort",
        family="choice",
        draw=inputs.shuffled,
        expected=plain_operators.ascending,
        results=(0, 1),
        exact=True,
    ),
    OperatorCase(
        operator="aten::_log_softmax",
        family="sampling",
        draw=lambda generator: {
            "self": 3 * inputs.normal(generator, 4, 300),
            "dim": -1,
            "half_to_float": False,
        },
        expected=plain_operators.log_softmax,
    ),
    OperatorCase(
        operator="aten::embedding",
        family="embedding",
        draw=inputs.embedding,
        expected=plain_operators.embedded,
        exact=True,
    ),
    # Embeddings of tokens whose rows are on another device.
    OperatorCase(
        operator="aten::masked_fill_",
        overload="Scalar",
        family="vocabulary",
        draw=inputs.tokens_of_other_ranks,
        expected=plain_operators.blanked,
        written=("self",),
        exact=True,
    ),
    # A kernel of the compiled extension. The layers of 0.10.0rc1 to 0.23.0 compute it with torch instead.
    OperatorCase(
        operator="_C_ascend::get_masked_input_and_mask",
        family="vocabulary",
        draw=inputs.vocabulary,
        expected=plain_operators.own_rows,
        results=(0, 1),
        exact=True,
    ),
)
