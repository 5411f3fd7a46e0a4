"""Compares the remaining references with formulas in float64, and tests that every comparison can fail.

`test_sim_vllm_ops` compares most operators, `test_sim_custom_ops` those with a gradient, and
`test_sim_quantized_ops` those of quantised models. This module compares the others, on random shapes.
`test_sim_matmul_collectives` and
`test_sim_expert_collectives` have those of two ranks. `test_no_reference_is_left_out` fails for an operator that
none of them compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

import test_sim_custom_ops as with_gradient  # noqa: E402
import test_sim_expert_collectives as expert_collectives  # noqa: E402
import test_sim_matmul_collectives as matmul_collectives  # noqa: E402
import test_sim_quantized_ops as quantized  # noqa: E402
from atb_formulas import ATB_FORMULAS  # noqa: E402
from box_formulas import BOXES  # noqa: E402
from drawn_inputs import Drawn, Pairs  # noqa: E402
from layer_formulas import LAYERS  # noqa: E402
from operator_formulas import FORMULAS, NOT_SCALED  # noqa: E402
from test_sim_vllm_ops import budget, present  # noqa: E402

from harness.devices.sim.faults.fault_spec import parse_faults  # noqa: E402
from harness.devices.sim.operators import serving_kernels  # noqa: E402
from harness.rollout.operators import plain_operators  # noqa: E402
from harness.rollout.operators.operator_cases import CASES, OperatorCase  # noqa: E402

pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.usefixtures("engine_operators"),
]

FP32_UNIT = 2.0**-24
UNITS = {torch.float32: FP32_UNIT, torch.bfloat16: 2.0**-8}
# References compute in fp32 or better. No formula here needs more roundings for one result, and no term is larger than
# the largest result.
ROUNDINGS = 64
# Their masks are random; `test_sim_strictness` tests what they have in common.
DROPOUT = (
    "_dropout_with_byte_mask",
    "_dropout_with_byte_mask_backward",
    "_npu_dropout",
    "_npu_dropout_gen_mask.Tensor",
    "npu_dropout_backward",
    "npu_dropout_do_mask",
    "npu_dropout_gen_mask",
)


def silu_in_place(drawn: Drawn) -> Pairs:
    x = drawn.normal(drawn.size(1, 5), drawn.size(1, 9))
    found = drawn.placed(x)
    torch.ops.npu.npu_silu_(found)
    yield found, x / (1 + torch.exp(-x))


def gelu_by_tanh(drawn: Drawn) -> Pairs:
    x = drawn.normal(drawn.size(1, 5), drawn.size(1, 9))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    yield torch.ops.npu.npu_gelu(drawn.placed(x), approximate="tanh"), 0.5 * x * (1 + torch.tanh(inner))


def fast_gelu(drawn: Drawn) -> Pairs:
    x = drawn.normal(drawn.size(1, 5), drawn.size(1, 9))
    yield torch.ops.npu.fast_gelu(drawn.placed(x)), x / (1 + torch.exp(-1.702 * x))


def gemma_norm(drawn: Drawn) -> Pairs:
    x, gamma = drawn.normal(drawn.size(1, 6), 2 * drawn.size(1, 9)), drawn.normal(1)
    gamma = gamma.expand(x.shape[-1]).clone()
    found = torch.ops.npu.npu_gemma_rms_norm(drawn.placed(x), drawn.placed(gamma), 1e-6)[0]
    yield found, plain_operators.gemma_rms_norm({"x": x, "gamma": gamma, "epsilon": 1e-6})[0]


def cast(drawn: Drawn, name: str = "npu_dtype_cast") -> Pairs:
    x = drawn.normal(drawn.size(1, 5), drawn.size(1, 9))
    found = getattr(torch.ops.npu, name)(drawn.placed(x), torch.float16)
    yield found, x.to(drawn.dtype).half().double()
    back = getattr(torch.ops.npu, f"{name}_backward")(found, drawn.dtype)
    yield back, found.cpu().to(drawn.dtype).double()


def rotated_pair(drawn: Drawn) -> Pairs:
    batch, length, size = drawn.size(1, 3), drawn.size(1, 5), 2 * drawn.size(1, 8)
    query, key = (drawn.normal(batch, length, heads, size) for heads in (4, 2))
    cos, sin = (drawn.normal(batch, length, 1, size) for _ in range(2))
    found = torch.ops.npu.npu_apply_rotary_pos_emb(
        *(drawn.placed(x) for x in (query, key, cos, sin)), layout="BSND"
    )
    for result, x in zip(found, (query, key), strict=True):
        expected = x * cos
        expected[..., : size // 2] -= x[..., size // 2 :] * sin[..., : size // 2]
        expected[..., size // 2 :] += x[..., : size // 2] * sin[..., size // 2 :]
        yield result, expected


def rotary_of_three_axes(drawn: Drawn) -> Pairs:
    sections = [drawn.size(1, 4) for _ in range(3)]
    half, tokens, heads = sum(sections), drawn.size(1, 6), {"query": 4, "key": 2}
    angles = drawn.normal(32, half)
    table = torch.cat([angles.cos(), angles.sin()], -1).to(drawn.dtype).double()
    positions = torch.stack([drawn.order(32)[:tokens] for _ in range(3)])
    given = {name: drawn.normal(tokens, count * 2 * half) for name, count in heads.items()}
    found = torch.ops.npu.npu_mrope(
        positions.npu(),
        *(drawn.placed(x) for x in (*given.values(), table)),
        2 * half,
        mrope_section=sections,
        rotary_mode="half",
    )
    axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    for result, x in zip(found, given.values(), strict=True):
        wanted = x.clone().unflatten(-1, (-1, 2 * half))
        for token in range(tokens):
            for place, axis in enumerate(axes):
                cos, sin = (table[positions[axis, token], place + shift] for shift in (0, half))
                for before, after in zip(x.unflatten(-1, (-1, 2 * half))[token], wanted[token], strict=True):
                    after[place] = before[place] * cos - before[place + half] * sin
                    after[place + half] = before[place + half] * cos + before[place] * sin
        yield result, wanted.flatten(-2)


def gating(drawn: Drawn) -> Pairs:
    """DeepSeek's routing: only the best groups of experts, and a bias that changes only the selection."""
    groups, size, tokens = drawn.size(2, 4), drawn.size(2, 4), drawn.size(1, 6)
    top_groups, top_k = drawn.size(1, groups), drawn.size(1, size)
    for by_sigmoid, of_two, biased, renormalised in (
        (False, False, False, False),
        (False, True, False, True),
        (True, True, True, False),
    ):
        x, bias = drawn.normal(tokens, groups * size), drawn.normal(groups * size)
        weights, experts, scores = torch.ops.npu.npu_moe_gating_top_k(
            drawn.placed(x),
            top_k,
            bias=drawn.placed(bias) if biased else None,
            k_group=top_groups,
            group_count=groups,
            group_select_mode=int(of_two),
            renorm=int(renormalised),
            norm_type=int(by_sigmoid),
            out_flag=True,
            routed_scaling_factor=2.5,
        )
        every = torch.sigmoid(x) if by_sigmoid else torch.softmax(x, -1)
        yield scores, every
        for token, row in enumerate(every):
            preference = (row + bias if biased else row).view(groups, size)
            strength = [
                float(sum(sorted(group.tolist())[-2:])) if of_two else float(group.max())
                for group in preference
            ]
            best = sorted(range(groups), key=lambda group: -strength[group])[:top_groups]
            experts_left = [group * size + index for group in best for index in range(size)]
            chosen = sorted(experts_left, key=lambda expert: -float(preference.flatten()[expert]))[:top_k]
            picked = row[chosen]
            if by_sigmoid or renormalised:
                picked = picked / picked.sum()
            yield experts[token], torch.tensor(chosen)
            yield weights[token], picked * 2.5


def final_routing(drawn: Drawn) -> Pairs:
    tokens, choices, hidden, experts = drawn.size(1, 5), drawn.size(1, 3), drawn.size(1, 9), 4
    rows, skip = drawn.normal(tokens * choices, hidden), drawn.normal(tokens, hidden)
    bias, scales = drawn.normal(experts, hidden), drawn.rand(tokens, choices)
    chosen = torch.stack([drawn.order(experts)[:choices] for _ in range(tokens)])
    where = drawn.order(tokens * choices)
    found = torch.ops.npu.npu_moe_finalize_routing(
        *(drawn.placed(x) for x in (rows, skip)),
        None,
        *(drawn.placed(x) for x in (bias, scales)),
        where.int().npu(),
        chosen.int().npu(),
    )
    expected = skip.clone()
    for token in range(tokens):
        for choice in range(choices):
            row = rows[where[token + choice * tokens]] + bias[chosen[token, choice]]
            expected[token] += scales[token, choice] * row
    yield found, expected


def permuted_and_dropped(drawn: Drawn) -> Pairs:
    tokens, choices = drawn.size(2, 6), drawn.size(1, 3)
    x = drawn.normal(tokens, drawn.size(1, 9))
    experts = torch.stack([drawn.order(4)[:choices] for _ in range(tokens)])
    kept = drawn.size(1, tokens * choices)
    found, rows = torch.ops.npu.npu_moe_token_permute(drawn.placed(x), experts.npu(), kept)
    entries = sorted(range(tokens * choices), key=lambda entry: (int(experts.flatten()[entry]), entry))
    yield found, x[[entry // choices for entry in entries[:kept]]]
    yield rows, torch.tensor([entries.index(entry) for entry in range(tokens * choices)])


def moved_blocks(drawn: Drawn) -> Pairs:
    count = drawn.size(2, 6)
    source, target = (drawn.normal(count, 4, 2, drawn.size(1, 1) * 8) for _ in range(2))
    moved = drawn.size(1, count)
    pairs = torch.stack([drawn.order(count)[:moved], drawn.order(count)[:moved]], 1)
    found, expected = drawn.placed(target), target.clone()
    torch.ops._C_ascend.swap_blocks(drawn.placed(source), found, pairs)
    for start, end in pairs.tolist():
        expected[end] = source[start]
    yield found, expected


def loss_gradient(drawn: Drawn, name: str = "l1_loss_backward", **options: Any) -> Pairs:
    """The gradient for the first argument, or for the second one in `kl_div_target_backward`; mean and sum."""
    shape = (drawn.size(1, 5), drawn.size(1, 9))
    x, target = drawn.normal(*shape), drawn.rand(*shape) + 0.125
    for_target = name == "kl_div_target_backward"
    loss = functional.l1_loss if name == "l1_loss_backward" else partial(functional.kl_div, **options)
    for reduction, number in (("mean", 1), ("sum", 2)):
        leaves = [x.clone().requires_grad_(), target.clone().requires_grad_()]
        loss(*leaves, reduction=reduction).backward()
        given = (torch.ones((), dtype=drawn.dtype).npu(), drawn.placed(x), drawn.placed(target))
        wanted = leaves[for_target].grad
        assert wanted is not None
        yield getattr(torch.ops.npu, name)(*given, number, **options), wanted


def binary_loss_gradient(drawn: Drawn) -> Pairs:
    rows, columns = drawn.size(1, 5), drawn.size(1, 9)
    x, weight, positive = drawn.normal(rows, columns), drawn.rand(rows, columns), drawn.rand(columns)
    target = drawn.order(rows * columns).view(rows, columns).remainder(2).double()
    leaf = x.clone().requires_grad_()
    functional.binary_cross_entropy_with_logits(leaf, target, weight, pos_weight=positive).backward()
    assert leaf.grad is not None
    found = torch.ops.npu.npu_binary_cross_entropy_with_logits_backward(
        torch.ones((), dtype=drawn.dtype).npu(), *(drawn.placed(v) for v in (x, target, weight, positive)), 1
    )
    yield found, leaf.grad


FP32 = (torch.float32,)
BOTH = tuple(UNITS)
# Comparison -> its operators, its function and its dtypes. Gradients of losses are not computed in bf16.
HERE: Mapping[str, tuple[tuple[str, ...], Callable[[Drawn], Pairs], tuple[torch.dtype, ...]]] = {
    "silu in place": (("npu::npu_silu_",), silu_in_place, BOTH),
    "gelu by tanh": (("npu::npu_gelu",), gelu_by_tanh, BOTH),
    "fast gelu": (("npu::fast_gelu",), fast_gelu, BOTH),
    "gemma norm": (("npu::npu_gemma_rms_norm",), gemma_norm, BOTH),
    "cast": (("npu::npu_dtype_cast", "npu::npu_dtype_cast_backward"), cast, BOTH),
    "cast, as autograd calls it": (
        ("npu::_npu_dtype_cast", "npu::_npu_dtype_cast_backward"),
        partial(cast, name="_npu_dtype_cast"),
        BOTH,
    ),
    "rotary of query and key": (("npu::npu_apply_rotary_pos_emb",), rotated_pair, BOTH),
    "rotary of three axes": (("npu::npu_mrope",), rotary_of_three_axes, BOTH),
    "gating": (("npu::npu_moe_gating_top_k",), gating, FP32),
    "final routing": (("npu::npu_moe_finalize_routing",), final_routing, BOTH),
    "permute with dropped rows": (("npu::npu_moe_token_permute",), permuted_and_dropped, BOTH),
    "blocks": (("_C_ascend::swap_blocks",), moved_blocks, BOTH),
    "l1": (("npu::l1_loss_backward",), loss_gradient, FP32),
    "kl": (("npu::kl_div_backward",), partial(loss_gradient, name="kl_div_backward"), FP32),
    "kl of logarithms": (
        ("npu::kl_div_backward",),
        partial(loss_gradient, name="kl_div_backward", log_target=True),
        FP32,
    ),
    "kl for its target": (
        ("npu::kl_div_target_backward",),
        partial(loss_gradient, name="kl_div_target_backward"),
        FP32,
    ),
    "kl of logarithms for its target": (
        ("npu::kl_div_target_backward",),
        partial(loss_gradient, name="kl_div_target_backward", log_target=True),
        FP32,
    ),
    "binary cross entropy": (
        ("npu::npu_binary_cross_entropy_with_logits_backward",),
        binary_loss_gradient,
        FP32,
    ),
    **{f"formula of {names[0]}": (names, formula, FP32) for names, formula in FORMULAS},
    **BOXES,
    **LAYERS,
    **ATB_FORMULAS,
}

# Operator -> the comparison of `test_sim_custom_ops` that uses it.
_HEADS = with_gradient.QUERY_HEADS
GRADIENTS: Mapping[str, Callable[[], None]] = {
    **{
        f"npu::{name}": partial(compare, torch.float32, *more)
        for names, compare, more in (
            (("npu_rms_norm", "npu_rms_norm_backward"), with_gradient.test_rms_norm, ()),
            (("npu_swiglu", "npu_swiglu_backward"), with_gradient.test_swiglu, (-1,)),
            (("npu_rotary_mul", "npu_rotary_mul_backward"), with_gradient.test_rotary, ("half",)),
            (
                ("npu_cross_entropy_loss", "npu_cross_entropy_loss_backward"),
                with_gradient.test_cross_entropy,
                ("mean",),
            ),
            (("npu_silu", "npu_silu_backward"), with_gradient.test_activation, ("npu_silu",)),
            (("npu_gelu", "npu_gelu_backward"), with_gradient.test_activation, ("npu_gelu",)),
            (("npu_fast_gelu", "npu_fast_gelu_backward"), with_gradient.test_activation, ("npu_fast_gelu",)),
            (
                ("npu_scaled_masked_softmax", "npu_scaled_masked_softmax_backward"),
                with_gradient.test_scaled_masked_softmax,
                (),
            ),
            (
                ("npu_fusion_attention", "npu_fusion_attention_grad"),
                with_gradient.test_fusion_attention,
                ("BNSD", _HEADS, "mask"),
            ),
            (
                (
                    *("npu_moe_token_permute", "npu_moe_token_permute_grad", "npu_moe_token_permute_grad_v2"),
                    *("npu_moe_token_unpermute", "_npu_moe_token_unpermute"),
                    *("npu_moe_token_unpermute_grad", "npu_moe_token_unpermute_grad_v2"),
                ),
                with_gradient.test_experts_round_trip,
                (True,),
            ),
        )
        for name in names
    },
    "npu::npu_grouped_matmul": partial(with_gradient.test_grouped_matmul_and_its_gradients, "ends"),
    "npu::npu_grouped_matmul.List": with_gradient.test_grouped_matmul_of_lists,
    "npu::npu_format_cast": with_gradient.test_casts,
}


def needed(*operators: str) -> None:
    for operator in operators:
        namespace, _, name = operator.partition(".")[0].partition("::")
        if not hasattr(getattr(torch.ops, namespace), name):
            pytest.skip(f"this cell has no operator {operator}")


@contextmanager
def distorted(operator: str, effect: str = "scale;any;factor=1.01") -> Iterator[Callable[[], int]]:
    """Distort all results of `operator`, by one percent by default. Yields a function that counts the calls."""
    simulation = overlay.installed()
    assert simulation is not None
    name = operator.partition(".")[0]
    with simulation.faults.injected(*parse_faults(f"{name};{effect};output=-1")) as (fault,):
        yield lambda: fault.hits


def errors(name: str, seed: int, dtype: torch.dtype) -> Iterator[float]:
    """The largest error of each result divided by its tolerance; infinite for a wrong shape or integer."""
    for found, expected in HERE[name][1](Drawn(seed, dtype)):
        assert found.device.type == "npu"
        result = found.cpu()
        if result.shape != expected.shape:
            yield math.inf
        elif not result.is_floating_point():
            yield 0.0 if torch.equal(result.long(), expected.long()) else math.inf
        else:
            own = UNITS.get(result.dtype, 0.0) * expected.abs()
            permitted = own + ROUNDINGS * FP32_UNIT * expected.abs().max() + 1e-300
            yield float(((result.double() - expected).abs() / permitted).max())


@pytest.mark.filterwarnings("ignore:reduction. 'mean':UserWarning")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, (_, _, dtypes) in HERE.items() for dtype in dtypes],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_operator_agrees_with_its_formula(name: str, dtype: torch.dtype) -> None:
    needed(*HERE[name][0])
    assert max(error for seed in range(5) for error in errors(name, seed, dtype)) <= 1


@pytest.mark.filterwarnings("ignore:reduction. 'mean':UserWarning")
@pytest.mark.parametrize(
    ("operator", "name"),
    [(operator, name) for name, (operators, _, _) in HERE.items() for operator in operators],
)
def test_a_comparison_here_fails_where_its_operator_is_wrong(operator: str, name: str) -> None:
    needed(operator)
    # Integers and complex numbers are not scaled: the results of the previous call are returned instead.
    effect = "stale;any" if operator in NOT_SCALED else "scale;any;factor=1.01"
    with distorted(operator, effect) as hits:
        worst = max(error for seed in range(2) for error in errors(name, seed, torch.float32))
    assert hits()
    assert worst > 1


@pytest.mark.parametrize("operator", GRADIENTS)
def test_a_comparison_with_gradients_fails_where_its_operator_is_wrong(operator: str) -> None:
    with distorted(operator) as hits:
        try:
            GRADIENTS[operator]()
        except AssertionError:
            assert hits()
            return
    if not hits():
        pytest.skip(f"this torch_npu computes it without {operator}")
    pytest.fail(f"{operator} is wrong by one percent and its comparison passes")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_the_battery_fails_where_its_operator_is_wrong(case: OperatorCase) -> None:
    present(case)
    # Integers cannot be scaled, so the results of the previous call are returned instead.
    with distorted(case.operator, "stale;any" if case.exact else "scale;any;factor=1.01") as hits:
        worst = max(budget(case, seed, torch.float32) for seed in range(2))
    assert hits()
    assert worst > 1


def test_no_reference_is_left_out() -> None:
    simulation = overlay.installed()
    assert simulation is not None
    implemented = {name if "::" in name else f"npu::{name}" for name in simulation.custom}
    implemented |= {f"atb::{name}" for name in serving_kernels.ATB}
    implemented |= {f"_C_ascend::{name}" for name in serving_kernels.ENGINE}
    compared = {case.operator for case in CASES} | {*GRADIENTS}
    compared |= {operator for operators, _, _ in HERE.values() for operator in operators}
    written = (*quantized.COMPARED, *quantized.WRITING)
    compared |= {name if "::" in name else f"npu::{name}" for name in written}
    compared |= {
        f"npu::{name}" for name in (*DROPOUT, *matmul_collectives.OPERATORS, *expert_collectives.OPERATORS)
    }
    assert sorted(implemented - compared) == []
