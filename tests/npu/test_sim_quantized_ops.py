"""torch_npu's operators of quantised models and of experts, against plain formulas in float64.

The formulas are those of op-plugin's documents (docs/zh/custom_APIs) and of the goldens of its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int, low: int = -8, high: int = 8, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def is_near(actual: torch.Tensor, expected: torch.Tensor, steps: float = 0.0) -> None:
    """Equal up to float32's rounding; integers up to `steps`."""
    found = actual.cpu().double()
    assert found.shape == expected.shape
    limit = torch.full_like(expected, steps) if steps else 1e-5 * (1 + expected.abs())
    assert bool(((found - expected).abs() <= limit).all())


def has(name: str) -> None:
    if not hasattr(torch_npu, name):
        pytest.skip(f"this release has no {name}")


@pytest.mark.parametrize("divides", [True, False])
def test_quantize(divides: bool) -> None:
    x, scale, zero = drawn(3, 16), drawn(16).abs() + 0.1, torch.full((16,), 2.0)
    own = zero.int() if divides else zero
    found = torch_npu.npu_quantize(x.npu(), scale.npu(), own.npu(), torch.qint8, 1, divides)
    exact = (x.double() / scale if divides else x.double() * scale) + 2
    assert found.dtype is torch.int8
    is_near(found, exact.round().clamp(-128, 127))


def test_int4_has_the_first_number_in_the_lowest_bits() -> None:
    numbers = torch.tensor([[-8, -7, -1, 0, 1, 2, 6, 7]], dtype=torch.int32)
    packed = torch_npu.npu_convert_weight_to_int4pack(numbers.npu()).cpu()
    assert packed.tolist() == [[int("76210F98", 16)]]
    one = torch.ones(1)
    again = torch_npu.npu_quantize(numbers.float().npu(), one.npu(), None, torch.quint4x2, -1, False)
    assert again.cpu().tolist() == packed.tolist()


def test_dynamic_quant_asymmetric_covers_the_range() -> None:
    has("npu_dynamic_quant_asymmetric")
    x = drawn(4, 32).half()
    values, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x.npu())
    exact = x.double()
    step = (exact.amax(-1) - exact.amin(-1)) / 255
    is_near(scale, step)
    is_near((values.cpu().double() - offset.cpu().double()[:, None]) * step[:, None], exact, steps=0.6 * 0.05)
    assert int(values.max()) == 127
    assert int(values.min()) == -128
    with pytest.raises(NotImplementedError, match="rows of equal numbers"):
        torch_npu.npu_dynamic_quant_asymmetric(torch.ones(2, 8).half().npu())


def test_scales_for_matrix_units_hold_offsets_and_can_be_rounded() -> None:
    # 1 + 2^-10 is the largest step that 19 bits keep; two thirds of it more is nearer to the next one.
    scale = torch.tensor([1 + 2.0**-10 + 2.0**-11 * 1.25, 1.0])
    cut, near = (
        (torch_npu.npu_trans_quant_param(scale.npu(), None, mode).cpu() & 0xFFFFFFFF)
        .int()
        .view(torch.float32)
        for mode in (0, 1)
    )
    assert [cut.tolist(), near.tolist()] == [[1 + 2.0**-10, 1.0], [1 + 2.0**-9, 1.0]]
    offset = torch.tensor([3.4, -300.0, 7.0, -1.0])
    packed = torch_npu.npu_trans_quant_param(torch.ones(1).npu(), offset.npu())
    assert ((packed.cpu() >> 37) & 0x1FF).tolist() == [3, 256, 7, 511]
    left, right = whole(2, 8), whole(8, 4)
    found = torch_npu.npu_quant_matmul(left.npu(), right.npu(), packed)
    exact = left.double() @ right.double() + torch.tensor([3.0, -256.0, 7.0, -1.0])
    is_near(found, exact.clamp(-128, 127))


def test_int8_by_int4_with_scales_of_groups() -> None:
    """x1 counts as x1 - 8, which `offset` makes good for: then the result is the plain product."""
    has("npu_convert_weight_to_int4pack")
    left, right = whole(2, 16, low=-128, high=128), whole(16, 8, dtype=torch.int32)
    scale, rows = drawn(2, 8).abs(), drawn(2, 1).abs()
    packed = torch_npu.npu_trans_quant_param(scale.npu().reshape(-1)).reshape(2, 8)
    kept = (packed.cpu() & 0xFFFFFFFF).int().view(torch.float32).double().repeat_interleave(8, 0)
    found = torch_npu.npu_quant_matmul(
        left.npu(),
        torch_npu.npu_convert_weight_to_int4pack(right.npu()),
        packed,
        offset=(8 * (right * kept).sum(0)).float().npu(),
        pertoken_scale=rows.npu(),
        output_dtype=torch.bfloat16,
        group_sizes=[0, 0, 8],
    )
    exact = (left.double() @ (right * kept)) * rows.double()
    assert bool(((found.cpu().double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-3).all())


@pytest.mark.parametrize("transposed", [False, True])
def test_quant_matmul_of_int4(transposed: bool) -> None:
    left, right = whole(5, 16), whole(16, 24)
    pack = torch_npu.npu_convert_weight_to_int4pack
    packed = pack(left.int().npu())
    other = pack(right.t().contiguous().int().npu()).t() if transposed else pack(right.int().npu())
    scale = drawn(24).abs()
    found = torch_npu.npu_quant_matmul(
        packed, other, scale.npu(), pertoken_scale=torch.full((5,), 0.5).npu(), output_dtype=torch.float16
    )
    expected = left.double() @ right.double() * scale * 0.5
    assert bool(((found.cpu().double() - expected).abs() <= 1e-3 * (1 + expected.abs())).all())


def test_quant_scatter_writes_the_quantised_rows() -> None:
    var, updates = torch.zeros(1, 4, 32, dtype=torch.int8), drawn(1, 1, 32).bfloat16()
    scale = torch.full((1, 1, 32), 0.5).bfloat16()
    index = torch.tensor([2], dtype=torch.int32)
    found = torch_npu.npu_quant_scatter(var.npu(), index.npu(), updates.npu(), scale.npu()).cpu()
    assert found[0, 2].tolist() == (updates.double() / 0.5).round().int().reshape(-1).tolist()
    assert not found[0, :2].any()
    own = var.npu()
    torch_npu.npu_quant_scatter_(own, index.npu(), updates.npu(), scale.npu())
    assert torch.equal(own.cpu(), found)


def test_add_rms_norm_quant() -> None:
    has("npu_add_rms_norm_quant")
    a, b, gamma = drawn(3, 32).half(), drawn(3, 32, seed=4).half(), drawn(32, seed=5).half()
    scale, zero = drawn(32, seed=6).abs() + 0.05, torch.ones(32, dtype=torch.int32)
    found, _, total = torch_npu.npu_add_rms_norm_quant(a.npu(), b.npu(), gamma.npu(), scale.npu(), zero.npu())
    exact = a.double() + b.double()
    y = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6) * gamma
    is_near(found, (y / scale + 1).round().clamp(-128, 127))
    assert torch.equal(total.cpu(), a + b)


def test_add_rms_norm_dynamic_quant() -> None:
    has("npu_add_rms_norm_dynamic_quant")
    a, b, gamma = drawn(3, 32).half(), drawn(3, 32, seed=4).half(), torch.ones(32).half()
    first, second = drawn(32, seed=6).half(), drawn(32, seed=7).half()
    found = torch_npu.npu_add_rms_norm_dynamic_quant(
        *(t.npu() for t in (a, b, gamma)),
        smooth_scale1=first.npu(),
        smooth_scale2=second.npu(),
        output_mask=[True, True],
    )
    exact = a.double() + b.double()
    y = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6)
    for values, scale, smooth in ((found[0], found[3], first), (found[1], found[4], second)):
        own = y * smooth.double()
        is_near(scale, own.abs().amax(-1) / 127)
        is_near(values, (own * 127 / own.abs().amax(-1, keepdim=True)).round(), steps=1)


def test_a_result_that_the_mask_leaves_out_has_one_element() -> None:
    has("npu_add_rms_norm_dynamic_quant")
    a, gamma = drawn(3, 32).half().npu(), torch.ones(32).half().npu()
    found = torch_npu.npu_add_rms_norm_dynamic_quant(a, a, gamma, output_mask=[True, False])
    assert [tuple(part.shape) for part in found] == [(3, 32), (1,), (3, 32), (3,), (1,)]


def test_dequant_swiglu_quant_of_groups() -> None:
    has("npu_dequant_swiglu_quant")
    x = whole(5, 32, low=-500, high=500, dtype=torch.int32)
    weight, tokens, smooth = drawn(2, 32).abs(), drawn(5, 1).abs(), drawn(2, 16).abs()
    values, scale = torch_npu.npu_dequant_swiglu_quant(
        x.npu(),
        weight_scale=weight.npu(),
        activation_scale=tokens.npu(),
        quant_scale=smooth.npu(),
        group_index=torch.tensor([3, 1]).npu(),
        activate_left=True,
        quant_mode=1,
    )
    group = torch.tensor([0, 0, 0, 1])
    exact = x[:4].double() * weight.double()[group] * tokens.double()[:4]
    gate, up = exact.chunk(2, -1)
    out = gate * torch.sigmoid(gate) * up * smooth.double()[group]
    is_near(scale[:4], out.abs().amax(-1) / 127)
    is_near(values[:4], (out * 127 / out.abs().amax(-1, keepdim=True)).round(), steps=1)
    assert not values[4].any()


def test_clipped_swiglu() -> None:
    has("npu_clipped_swiglu")
    x = 8 * drawn(4, 16)
    a, b = x.double()[:, ::2].clamp(max=7), x.double()[:, 1::2].clamp(-7, 7)
    is_near(torch_npu.npu_clipped_swiglu(x.npu()), a * torch.sigmoid(1.702 * a) * (b + 1))


def test_grouped_matmul_of_int8_with_scales_and_a_row_after_the_groups() -> None:
    x, weight = whole(6, 16, low=-100, high=100), whole(2, 16, 24, low=-100, high=100)
    scale, rows = drawn(2, 24).abs(), drawn(6).abs()
    found = torch_npu.npu_grouped_matmul(
        [x.npu()],
        [weight.npu()],
        scale=[scale.npu()],
        per_token_scale=[rows.npu()],
        group_list=torch.tensor([2, 5]).npu(),
        split_item=3,
        group_type=0,
        output_dtype=torch.bfloat16,
    )[0].cpu()
    expected = torch.cat(
        [x[:2].double() @ weight[0].double() * scale[0], x[2:5].double() @ weight[1].double() * scale[1]]
    )
    expected *= rows[:5, None]
    assert found.shape == (6, 24)
    assert bool(((found[:5].double() - expected).abs() <= 2**-8 * (1e-6 + expected.abs())).all())


def test_weight_quant_batchmatmul_by_group() -> None:
    x, weight = drawn(3, 64).half(), whole(64, 16)
    scale, offset = drawn(2, 16).half(), drawn(2, 16, seed=8).half()
    found = torch_npu.npu_weight_quant_batchmatmul(
        x.npu(), weight.npu(), scale.npu(), offset.npu(), antiquant_group_size=32
    )
    rows = [table.double().repeat_interleave(32, 0) for table in (scale, offset)]
    expected = x.double() @ ((weight.double() + rows[1]) * rows[0])
    assert bool(((found.cpu().double() - expected).abs() <= 2e-3 * (1 + expected.abs())).all())


def test_ffn_of_experts() -> None:
    x, up, down = drawn(6, 8), drawn(2, 8, 16, seed=4), drawn(2, 16, 8, seed=5)
    found = torch_npu.npu_ffn(
        x.half().npu(), up.half().npu(), down.half().npu(), "relu", expert_tokens_index=[2, 6]
    )
    x, up, down = (t.half().double() for t in (x, up, down))
    expected = torch.cat([torch.relu(x[a:b] @ up[e]) @ down[e] for e, (a, b) in enumerate([(0, 2), (2, 6)])])
    assert bool(((found.cpu().double() - expected).abs() <= 1e-3 * (1 + expected.abs())).all())


def test_re_routing_sorts_by_expert_and_then_by_rank() -> None:
    has("npu_moe_re_routing")
    tokens = torch.arange(7.0)[:, None].expand(7, 4).contiguous().half()
    counts = torch.tensor([[1, 2], [3, 1]])
    found, _, index, number = torch_npu.npu_moe_re_routing(tokens.npu(), counts.npu())
    assert index.tolist() == [0, 3, 4, 5, 1, 2, 6]
    assert found[:, 0].tolist() == index.tolist()
    assert number.tolist() == [4, 3]


def test_init_routing_sorts_experts_above_the_range_before_those_below_it() -> None:
    experts = torch.tensor([[0, 9], [3, 7]], dtype=torch.int32)
    found = torch_npu.npu_moe_init_routing_v2(
        drawn(2, 8).npu(),
        experts.npu(),
        expert_num=16,
        active_num=4,
        active_expert_range=[2, 8],
        row_idx_type=1,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
    )
    assert found[1].tolist() == [2, 3, 1, 0]


def test_init_routing_and_the_tokens_up_to_each_expert() -> None:
    x = drawn(3, 4)
    experts = torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)
    rows = torch.arange(6, dtype=torch.int32).reshape(2, 3).t().contiguous()
    found, index, order = torch_npu.npu_moe_init_routing(x.npu(), rows.npu(), experts.npu(), 3)
    assert order.tolist() == [0, 0, 1, 1, 2, 2]
    for token in range(3):
        for choice in range(2):
            place = index[token + 3 * choice].item()
            assert order[place].item() == experts[token, choice]
            assert torch.equal(found[place].cpu(), x[token])
    ends = torch_npu.npu_moe_compute_expert_tokens(order, 3)
    assert ends.tolist() == [2, 4, 6]


def test_attention_of_a_token_and_merged_parts() -> None:
    q, k, v = drawn(1, 2, 1, 16).half(), drawn(1, 2, 9, 16, seed=4).half(), drawn(1, 2, 9, 16, seed=5).half()
    found = torch_npu.npu_incre_flash_attention(
        q.npu(), k.npu(), v.npu(), num_heads=2, scale_value=0.25, input_layout="BNSD"
    )
    scores = q.double() @ k.double().transpose(-1, -2) * 0.25
    expected = torch.softmax(scores, -1) @ v.double()
    assert bool(((found.cpu().double() - expected).abs() <= 1e-3).all())
    has("npu_attention_update")
    parts = [
        (scores[..., a:b].logsumexp(-1), torch.softmax(scores[..., a:b], -1) @ v.double()[:, :, a:b])
        for a, b in ((0, 4), (4, 9))
    ]
    out, lse = torch_npu.npu_attention_update(
        [lse.float().flatten().npu() for lse, _ in parts],
        [out.float().reshape(2, 16).npu() for _, out in parts],
        1,
    )
    is_near(out, expected.reshape(2, 16))
    is_near(lse, scores.logsumexp(-1).flatten())


def test_paged_caches_of_latent_attention() -> None:
    kv, gamma = drawn(2, 1, 1, 576).half(), drawn(512).half()
    cos, sin = drawn(2, 1, 1, 64, seed=4).half(), drawn(2, 1, 1, 64, seed=5).half()
    k_cache, ckv_cache = (torch.zeros(3, 4, 1, n).half().npu() for n in (64, 512))
    torch_npu.npu_kv_rmsnorm_rope_cache(
        kv.npu(),
        gamma.npu(),
        cos.npu(),
        sin.npu(),
        torch.tensor([5, 2]).npu(),
        k_cache,
        ckv_cache,
        cache_mode="PA",
    )
    normal, rest = kv.double().split([512, 64], -1)
    y = normal * torch.rsqrt(normal.pow(2).mean(-1, keepdim=True) + 1e-5) * gamma.double()
    pairs = rest.reshape(2, 32, 2).transpose(-1, -2).reshape(2, 64)
    turned = torch.cat([-pairs[:, 32:], pairs[:, :32]], -1)
    rope = pairs * cos.double().reshape(2, 64) + turned * sin.double().reshape(2, 64)
    for cache, expected in ((k_cache, rope), (ckv_cache, y.reshape(2, 512))):
        slots = cache.cpu().double().flatten(0, 2)[[5, 2]]
        assert bool(((slots - expected).abs() <= 2e-3 * (1 + expected.abs())).all())
    has("npu_gather_pa_kv_cache")
    key, value = torch.zeros(2, 1, 64).half().npu(), torch.zeros(2, 1, 512).half().npu()
    table = torch.tensor([[1], [0]], dtype=torch.int32).npu()
    torch_npu.npu_gather_pa_kv_cache(
        k_cache, ckv_cache, table, torch.tensor([2, 0], dtype=torch.int32).npu(), key, value
    )
    assert torch.equal(key.cpu(), k_cache[1, :2].cpu())


def test_rms_norm_quant() -> None:
    has("npu_rms_norm_quant")
    x, gamma, beta = drawn(3, 32).half(), drawn(32, seed=4).half(), drawn(32, seed=5).half()
    scale, offset = torch.full((1,), 20.0).half(), torch.full((1,), 3, dtype=torch.int8)
    found = torch_npu.npu_rms_norm_quant(*(t.npu() for t in (x, gamma, beta, scale, offset)))
    exact = x.double()
    y = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6) * gamma.double() + beta.double()
    is_near(found, (y * 20 + 3).round().clamp(-128, 127))


def test_swiglu_quant_of_groups() -> None:
    has("npu_swiglu_quant")
    x, smooth = drawn(5, 32), drawn(2, 16, seed=4).abs()
    values, scale = torch_npu.npu_swiglu_quant(
        x.npu(),
        smooth_scales=smooth.npu(),
        offsets=torch.ones(2, 16).npu(),
        group_index=torch.tensor([2, 5], dtype=torch.int32).npu(),
        quant_mode=1,
    )
    up, gate = x.double().chunk(2, -1)
    out = gate * torch.sigmoid(gate) * up * smooth.double()[torch.tensor([0, 0, 1, 1, 1])]
    # What rows are multiplied by, not divided by: as op-plugin's test_npu_swiglu_quant.py expects.
    is_near(scale, 127 / out.abs().amax(-1))
    is_near(values, (out * 127 / out.abs().amax(-1, keepdim=True)).round(), steps=1)


def test_grouped_matmul_swiglu_quant() -> None:
    has("npu_grouped_matmul_swiglu_quant")
    x, weight = whole(4, 16, low=-100, high=100), whole(2, 16, 64, low=-100, high=100)
    scale, rows = 1e-3 * drawn(2, 64).abs(), drawn(4).abs()
    values, scales, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        x.npu(), weight.npu(), torch.tensor([1, 4]).npu(), scale.npu(), rows.npu()
    )
    parts = [x[a:b].double() @ weight[e].double() * scale[e] for e, (a, b) in enumerate([(0, 1), (1, 4)])]
    gate, up = (torch.cat(parts) * rows[:, None].double()).chunk(2, -1)
    out = gate * torch.sigmoid(gate) * up
    is_near(scales, out.abs().amax(-1) / 127)
    is_near(values, (out * 127 / out.abs().amax(-1, keepdim=True)).round(), steps=1)


def test_grouped_matmul_swiglu_quant_v2_takes_counts_or_ends() -> None:
    has("npu_grouped_matmul_swiglu_quant_v2")
    x, weight = whole(4, 16, low=-100, high=100).npu(), whole(2, 16, 64, low=-100, high=100).npu()
    scale, rows = (1e-3 * drawn(2, 64).abs()).npu(), drawn(4).abs().npu()
    exact = [
        x[a:b].cpu().double() @ weight[e].cpu().double() * scale[e].cpu()
        for e, (a, b) in enumerate([(0, 1), (1, 4)])
    ]
    gate, up = (torch.cat(exact) * rows.cpu()[:, None].double()).chunk(2, -1)
    out = gate * torch.sigmoid(gate) * up
    for kind, groups in ((0, [1, 4]), (1, [1, 3])):
        values, scales = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x, [weight], [scale], rows, torch.tensor(groups).npu(), group_list_type=kind
        )
        is_near(scales, out.abs().amax(-1) / 127)
        is_near(values, (out * 127 / out.abs().amax(-1, keepdim=True)).round(), steps=1)


def of_experts(product: torch.Tensor, smooth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the fused kernels of experts make of their product in float64: int8 numbers, scales of rows."""
    gate, up = product.chunk(2, -1)
    out = gate * torch.sigmoid(gate) * up * smooth
    return (out * 127 / out.abs().amax(-1, keepdim=True)).round(), out.abs().amax(-1) / 127


def int4_of(numbers: torch.Tensor) -> torch.Tensor:
    """int4 numbers of the device, eight in one int32 along the last dimension."""
    packed = torch_npu.npu_convert_weight_to_int4pack(numbers.int().reshape(-1, numbers.shape[-1]).npu())
    return packed.reshape(*numbers.shape[:-1], -1)


def blocks_of(weight: torch.Tensor, width: int) -> torch.Tensor:
    """Matrices (groups, k, n) as the blocks of FRACTAL_NZ, arranged in memory."""
    groups, k, n = weight.shape
    rows = weight.reshape(groups, k // 16, 16, n // width, width)
    return rows.permute(0, 3, 1, 2, 4).contiguous()


@pytest.fixture
def private_formats() -> Iterator[None]:
    """Casts to FRACTAL_NZ have an effect."""
    before = torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT")
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = before == b"enable"


@pytest.mark.parametrize("form", ["arranged", "view of a cast matrix"])
@pytest.mark.usefixtures("private_formats")
def test_grouped_matmul_swiglu_quant_takes_blocks_of_nz(form: str) -> None:
    has("npu_grouped_matmul_swiglu_quant_v2")
    x, weight = whole(4, 32, low=-100, high=100), whole(2, 32, 64, low=-100, high=100)
    scale, rows = 1e-3 * drawn(2, 64).abs(), drawn(4).abs()
    product = torch.cat(
        [x[:1].double() @ weight[0].double() * scale[0], x[1:].double() @ weight[1].double() * scale[1]]
    )
    if form == "arranged":
        given = blocks_of(weight, 32).npu()
    else:
        given = torch_npu.npu_format_cast(weight.npu(), 29).view(2, 2, 2, 16, 32)
    values, scales = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        x.npu(), [given], [scale.npu()], rows.npu(), torch.tensor([1, 4]).npu()
    )
    expected, of_rows = of_experts(product * rows[:, None].double(), torch.ones(()))
    is_near(scales, of_rows)
    is_near(values, expected, steps=1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("has_blocks", [False, True])
def test_int8_by_int4_experts_with_an_assist_matrix(groups: int, has_blocks: bool) -> None:
    has("npu_grouped_matmul_swiglu_quant_v2")
    x, weight = whole(4, 32, low=-100, high=100), whole(2, 32, 64)
    scale, rows = 1e-2 * drawn(2, groups, 64).abs(), drawn(4).abs()
    scaled = weight.double() * scale.double().repeat_interleave(32 // groups, 1)
    product = torch.cat([x[:1].double() @ scaled[0], x[1:].double() @ scaled[1]])
    # What callers hand over, so that the kernel's 8 less in each number of x goes away.
    assist = (8 * scaled.sum(1)).float()
    bits = (scale if groups > 1 else scale[:, 0]).contiguous().view(torch.int32).long()
    packed = int4_of(blocks_of(weight, 64) if has_blocks else weight)
    ends = torch.tensor([1, 4]).npu()
    values, scales = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        *(x.npu(), [packed], [bits.npu()], rows.npu(), ends),
        weight_assist_matrix=[assist.npu()],
        dequant_mode=int(groups > 1),
    )
    expected, of_rows = of_experts(product * rows[:, None].double(), torch.ones(()))
    is_near(scales, of_rows)
    is_near(values, expected, steps=1)
    first = torch_npu.npu_grouped_matmul_swiglu_quant(
        x.npu(), packed, ends, bits.npu(), rows.npu(), bias=assist.npu()
    )
    assert torch.equal(first[0].cpu(), values.cpu())
    assert torch.equal(first[1].cpu(), scales.cpu())


@pytest.mark.parametrize("by_column", [True, False])
def test_int4_experts_with_smooth_scales(by_column: bool) -> None:
    has("npu_grouped_matmul_swiglu_quant_v2")
    x, weight = whole(5, 32), whole(2, 32, 64)
    scale, rows = 1e-2 * drawn(2, 64).abs(), drawn(5).abs()
    smooth = drawn(2, 32, seed=4) if by_column else drawn(2, seed=4)
    product = torch.cat(
        [x[:1].double() @ weight[0].double() * scale[0], x[1:4].double() @ weight[1].double() * scale[1]]
    )
    values, scales = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
        *(int4_of(x), [int4_of(weight)], [scale.npu()], rows.npu(), torch.tensor([1, 4]).npu()),
        smooth_scale=smooth.npu(),
    )
    of_row = smooth.double().reshape(2, -1)[torch.tensor([0, 1, 1, 1])]
    expected, of_rows = of_experts(product * rows[:4, None].double(), of_row)
    is_near(scales[:4], of_rows)
    is_near(values[:4], expected, steps=1)
    # The operator writes nothing after the last group.
    assert not values[4:].any()
    assert not scales[4:].any()


def test_group_quant() -> None:
    x, scale = drawn(5, 8), drawn(3, 8, seed=4)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = torch_npu.npu_group_quant(
        (20 * x).npu(), scale.npu(), ends.npu(), offset=torch.full((1,), 2.0).npu(), dst_dtype=torch.qint8
    )
    exact = 20 * x.double() * scale.double()[torch.tensor([0, 0, 2, 2, 2])] + 2
    is_near(found, exact.round().clamp(-128, 127))


def test_init_routing_quant() -> None:
    has("npu_moe_init_routing_quant")
    x, experts = drawn(3, 8), torch.tensor([[2, 0], [0, 1], [2, 1]], dtype=torch.int32)
    rows = x.double()[torch.tensor([0, 1, 1, 2, 0, 2])]
    options: dict[str, Any] = {"active_num": 0, "expert_num": 3, "expert_tokens_num_mode": 2}
    found = torch_npu.npu_moe_init_routing_quant(x.npu(), experts.npu(), quant_mode=1, **options)
    is_near(found[0], (rows * 127 / rows.abs().amax(-1, keepdim=True)).round())
    is_near(found[4], rows.abs().amax(-1) / 127)
    assert found[1].tolist() == [4, 0, 1, 2, 5, 3]
    assert (found[2].dtype, found[2].tolist()) == (torch.int32, [2, 2, 2])
    scale, offset = torch.full((1,), 30.0), torch.full((1,), 3.0)
    found = torch_npu.npu_moe_init_routing_quant(
        x.npu(), experts.npu(), scale=scale.npu(), offset=offset.npu(), quant_mode=0, **options
    )
    is_near(found[0], (rows * 30 + 3).round().clamp(-128, 127))


def test_signs_and_ranges() -> None:
    x = torch.tensor([1.0, -1, 0, 2, -3, -1, -1, 4, -0.5, 5])
    packed = torch_npu.npu_sign_bits_pack(x.npu(), 1)
    assert packed.tolist() == [[0b10001101, 0b00000010]]
    back = torch_npu.npu_sign_bits_unpack(packed.flatten(), 1, torch.float32)
    assert back.tolist() == [[1, -1, 1, 1, -1, -1, -1, 1, -1, 1, *[-1.0] * 6]]
    start, end = (torch.tensor([ends], dtype=torch.int32).npu() for ends in ([0, 2], [2, 3]))
    filled = torch_npu.npu_masked_fill_range(torch.zeros(2, 2, 4).npu(), start, end, torch.ones(1).npu(), 2)
    assert filled[:, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]
    assert torch.equal(filled[:, 0], filled[:, 1])


def test_atb_quantizes_per_tensor_and_has_eight_dimensions() -> None:
    quantize = getattr(torch.ops.atb, "_npu_quantize_per_tensor", None)
    if quantize is None:
        pytest.skip("this release has no quantisation by ATB")
    x, scale, zero = drawn(3, 16).half(), drawn(16).abs().half() + 0.1, torch.full((16,), 3, dtype=torch.int8)
    found = torch.zeros(3, 16, dtype=torch.int8).npu()
    quantize(x.npu(), scale.npu(), zero.npu(), found)
    is_near(found, ((x.float() / scale.float()).round() + 3).double().clamp(-128, 127))
    with pytest.raises(RuntimeError, match="at most 8 dimensions, but got 9"):
        quantize(torch.ones([1] * 9).half().npu(), scale.npu(), zero.npu(), found)


def test_attention_of_whole_sequences() -> None:
    q, k, v = (drawn(1, 2, 5, 16, seed=seed).half() for seed in (3, 4, 5))
    mask = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1)
    for causal in (False, True):
        # A window that no sequence fills has no effect.
        wide = {"pre_tokens": 65535, "next_tokens": 65535}
        given = {"atten_mask": mask.npu(), "sparse_mode": 3} if causal else wide
        found = torch_npu.npu_prompt_flash_attention(
            q.npu(), k.npu(), v.npu(), num_heads=2, scale_value=0.25, input_layout="BNSD", **given
        )
        scores = q.double() @ k.double().transpose(-1, -2) * 0.25
        hidden = mask[:5, :5] if causal else torch.zeros(5, 5, dtype=torch.bool)
        expected = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v.double()
        assert bool(((found.cpu().double() - expected).abs() <= 1e-3 * (1 + expected.abs())).all())
    with pytest.raises(NotImplementedError, match="npu_prompt_flash_attention with window"):
        torch_npu.npu_prompt_flash_attention(q.npu(), k.npu(), v.npu(), num_heads=2, pre_tokens=3)


def test_transpose_batchmatmul() -> None:
    x, weight = drawn(3, 2, 8), drawn(2, 8, 5)
    found = torch_npu.npu_transpose_batchmatmul(x.npu(), weight.npu(), perm_x1=(1, 0, 2))
    is_near(found, (x.double().transpose(0, 1) @ weight.double()).transpose(0, 1))


def test_softmax_and_norms_in_place() -> None:
    logits, values = drawn(2, 4, 6), drawn(2, 6, 3, seed=4)
    p = logits.double().requires_grad_()
    soft = torch.softmax(p, -1)
    (soft @ values.double()).sum().backward()
    own = logits.npu()
    torch_npu.npu_attn_softmax_(own)
    is_near(own, soft.detach())
    torch_npu.npu_attn_softmax_backward_(own, torch.ones(2, 4, 3).npu(), values.npu())
    assert p.grad is not None
    is_near(own, p.grad)
    image, weight, bias = drawn(2, 4, 3, 3), drawn(4), drawn(4, seed=9)
    found = torch_npu.npu_group_norm_silu(image.npu(), weight.npu(), bias.npu(), 2)[0]
    exact = torch.nn.functional.group_norm(image.double(), 2, weight.double(), bias.double())
    is_near(found, torch.nn.functional.silu(exact))
    found = torch_npu.npu_layer_norm_eval(image.npu(), (3, 3))
    is_near(found, torch.nn.functional.layer_norm(image.double(), (3, 3)))


# Operators that are compared above; those that only write into arguments have no result to distort.
COMPARED: dict[str, Callable[[], None]] = {
    "npu_quantize": lambda: test_quantize(True),
    "npu_convert_weight_to_int4pack": test_int4_has_the_first_number_in_the_lowest_bits,
    "npu_dynamic_quant_asymmetric": test_dynamic_quant_asymmetric_covers_the_range,
    "npu_quant_scatter": test_quant_scatter_writes_the_quantised_rows,
    "npu_add_rms_norm_quant": test_add_rms_norm_quant,
    "npu_add_rms_norm_dynamic_quant": test_add_rms_norm_dynamic_quant,
    "npu_rms_norm_quant": test_rms_norm_quant,
    "npu_swiglu_quant": test_swiglu_quant_of_groups,
    "npu_dequant_swiglu_quant": test_dequant_swiglu_quant_of_groups,
    "npu_clipped_swiglu": test_clipped_swiglu,
    "npu_grouped_matmul_swiglu_quant": test_grouped_matmul_swiglu_quant,
    "npu_grouped_matmul_swiglu_quant_v2": test_grouped_matmul_swiglu_quant_v2_takes_counts_or_ends,
    "npu_group_quant": test_group_quant,
    "npu_moe_init_routing_quant": test_init_routing_quant,
    "npu_sign_bits_pack": test_signs_and_ranges,
    "npu_sign_bits_unpack": test_signs_and_ranges,
    "npu_masked_fill_range": test_signs_and_ranges,
    "npu_weight_quant_batchmatmul": test_weight_quant_batchmatmul_by_group,
    "npu_ffn": test_ffn_of_experts,
    "npu_moe_re_routing": test_re_routing_sorts_by_expert_and_then_by_rank,
    "npu_moe_init_routing": test_init_routing_and_the_tokens_up_to_each_expert,
    "npu_moe_compute_expert_tokens": test_init_routing_and_the_tokens_up_to_each_expert,
    "npu_incre_flash_attention": test_attention_of_a_token_and_merged_parts,
    "npu_prompt_flash_attention": test_attention_of_whole_sequences,
    "npu_attention_update": test_attention_of_a_token_and_merged_parts,
    "npu_transpose_batchmatmul": test_transpose_batchmatmul,
    "npu_attn_softmax_": test_softmax_and_norms_in_place,
    "npu_attn_softmax_backward_": test_softmax_and_norms_in_place,
    "npu_group_norm_silu": test_softmax_and_norms_in_place,
    "npu_layer_norm_eval": test_softmax_and_norms_in_place,
}
WRITING = frozenset(
    {
        *("npu_quant_scatter_", "npu_gather_pa_kv_cache", "npu_kv_rmsnorm_rope_cache"),
        "atb::_npu_quantize_per_tensor",
    }
)


@pytest.mark.parametrize("operator", COMPARED)
def test_a_comparison_fails_where_its_operator_is_wrong(operator: str) -> None:
    simulation = overlay.installed()
    assert simulation is not None
    hits = []

    def off_by_one(plan: Any, compute: Callable[..., Any], values: list[Any], named: dict[str, Any]) -> Any:
        result = compute(*values, **named)
        if plan.base == operator:
            hits.append(operator)
            for part in result if isinstance(result, (tuple, list)) else (result,):
                # In place, because an operator may return an argument that it wrote.
                part.add_(1)
        return result

    interceptors = simulation.machine.interceptors
    before = [*interceptors]
    interceptors[:] = [off_by_one]
    try:
        COMPARED[operator]()
    except AssertionError:
        assert hits
        return
    finally:
        interceptors[:] = before
    if not hits:
        pytest.skip(f"this torch_npu computes it without {operator}")
    pytest.fail(f"{operator} is wrong by one and its comparison passes")
