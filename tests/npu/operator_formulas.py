"""Formulas in float64 for operators of torch_npu, each with random inputs: see `test_sim_references`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from drawn_inputs import Drawn, Pairs
from torch.nn import functional

Formula = Callable[[Drawn], Pairs]
npu: Any = torch.ops.npu


def _same(
    name: str, formula: Callable[..., Any], *given: tuple[int, ...], more: Sequence[Any] = ()
) -> Formula:
    """Compares npu::name(tensors, *more) with the formula of the same arguments."""

    def compare(drawn: Drawn) -> Pairs:
        tensors = [drawn.normal(*shape) for shape in given]
        found = getattr(npu, name)(*(drawn.placed(x) for x in tensors), *more)
        expected = formula(*tensors)
        if isinstance(found, torch.Tensor):
            found, expected = [found], [expected]
        yield from zip(found, expected, strict=True)

    return compare


def _gradients(
    name: str, forward: Callable[..., torch.Tensor], *given: tuple[int, ...], more: Sequence[Any] = ()
) -> Formula:
    """Compares npu::name(gradient, tensors, *more) with what autograd says of the forward."""

    def compare(drawn: Drawn) -> Pairs:
        tensors = [drawn.normal(*shape).requires_grad_() for shape in given]
        result = forward(*tensors)
        dy = drawn.normal(*result.shape)
        found = getattr(npu, name)(*(drawn.placed(x.detach()) for x in (dy, *tensors)), *more)
        expected = torch.autograd.grad(result, tensors, dy)
        yield from zip([found] if isinstance(found, torch.Tensor) else found, expected, strict=False)

    return compare


def _add_layer_norm(drawn: Drawn) -> Pairs:
    x, other, gamma, beta = (drawn.normal(*shape) for shape in ((3, 8), (3, 8), (8,), (8,)))
    found = npu.npu_add_layer_norm(*(drawn.placed(one) for one in (x, other, gamma, beta)), 1e-5, True)
    leaves = [(x + other).requires_grad_(), gamma.requires_grad_(), beta.requires_grad_()]
    y = functional.layer_norm(leaves[0], (8,), leaves[1], leaves[2], 1e-5)
    mean = leaves[0].mean(-1, keepdim=True)
    rstd = (leaves[0].var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    yield from zip(found, [one.detach() for one in (y, mean, rstd, leaves[0])], strict=True)
    dy = drawn.normal(3, 8)
    back = npu.npu_add_layer_norm_backward(
        *(drawn.placed(one.detach()) for one in (dy, x, other)),
        found[2],
        found[1],
        drawn.placed(gamma.detach()),
        None,
    )
    expected = torch.autograd.grad(y, leaves, dy)
    yield from zip(back, [expected[0], *expected], strict=True)


def _deep_norm(drawn: Drawn) -> Pairs:
    x, gx, beta, gamma = (drawn.normal(*shape).requires_grad_() for shape in ((3, 8), (3, 8), (8,), (8,)))
    placed = [drawn.placed(one.detach()) for one in (x, gx, beta, gamma)]
    mean, rstd, found = npu.npu_deep_norm(*placed, 0.5, 1e-5)
    y = functional.layer_norm(0.5 * x + gx, (8,), gamma, beta, 1e-5)
    yield found, y.detach()
    dy = drawn.normal(3, 8)
    back = npu.npu_deep_norm_backward(drawn.placed(dy), *placed[:2], placed[3], mean, rstd, 0.5)
    yield from zip(back, torch.autograd.grad(y, [x, gx, beta, gamma], dy), strict=True)


def _rms(total: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rstd = (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return total * rstd * gamma, rstd


def _add_rms_norm_v2(drawn: Drawn) -> Pairs:
    x, other, gamma = (drawn.normal(*shape) for shape in ((3, 8), (3, 8), (8,)))
    y, rstd = _rms(x + other, gamma)
    placed = [drawn.placed(one) for one in (x, other, gamma)]
    yield npu.npu_add_rms_norm_v2(*placed), rstd
    yield placed[0], y
    yield placed[1], x + other


def _add_rms_norm_v2_functional(drawn: Drawn) -> Pairs:
    x, other, gamma = (drawn.normal(*shape) for shape in ((3, 8), (3, 8), (8,)))
    y, rstd = _rms(x + other, gamma)
    found = npu.npu_add_rms_norm_v2_functional(*(drawn.placed(one) for one in (x, other, gamma)))
    yield from zip(found, (rstd, y, x + other), strict=True)


def _add_rms_norm_cast(drawn: Drawn) -> Pairs:
    x, other, gamma = (drawn.normal(*shape) for shape in ((3, 8), (3, 8), (8,)))
    y, rstd = _rms(x + other, gamma)
    found = npu.npu_add_rms_norm_cast(*(drawn.placed(one) for one in (x, other, gamma)))
    yield from zip(found, (y, y, rstd, x + other), strict=True)


def _gelu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return gate * 0.5 * (1 + torch.erf(gate / 2**0.5)) * up


def _window_softmax(drawn: Drawn) -> Pairs:
    x, mask, bias = drawn.normal(2, 3, 4, 5, 5), drawn.normal(3, 5, 5), drawn.normal(4, 5, 5)
    found = npu.npu_masked_softmax_with_rel_pos_bias(*(drawn.placed(one) for one in (x, mask, bias)), 0.5)
    yield found, torch.softmax(0.5 * x + mask[None, :, None] + bias[None, None], -1)


def _gating_v2(drawn: Drawn) -> Pairs:
    x = drawn.normal(4, 7)
    finished = torch.tensor([False, True, False, False])
    scores = torch.softmax(x, -1)
    for renorm in (0, 1):
        weights, experts, everything = npu.npu_moe_gating_top_k_softmax_v2(
            drawn.placed(x), k=3, finished=finished.npu(), renorm=renorm, output_softmax=True
        )
        values, indices = (x if renorm else scores).topk(3)
        yield weights, torch.softmax(values, -1) if renorm else values
        yield experts, torch.where(finished[:, None], 7, indices)
        if renorm:
            assert not everything.numel()
        else:
            yield everything, scores
    _, experts, rows = npu.npu_moe_gating_top_k_softmax(drawn.placed(x), finished.npu(), 3)
    yield experts, torch.where(finished[:, None], 7, scores.topk(3)[1])
    yield rows, torch.arange(4)[:, None] + 4 * torch.arange(3)


def _interleaved_rope(drawn: Drawn) -> Pairs:
    x, cos, sin = drawn.normal(2, 3, 1, 8), drawn.normal(2, 1, 1, 8), drawn.normal(2, 1, 1, 8)
    even, odd = x[..., 0::2], x[..., 1::2]
    expected = torch.cat(
        [even * cos[..., :4] - odd * sin[..., :4], odd * cos[..., 4:] + even * sin[..., 4:]], -1
    )
    yield npu.npu_interleave_rope(*(drawn.placed(one) for one in (x, cos, sin))), expected


def _double_backward(drawn: Drawn) -> Pairs:
    left, right, dy = (drawn.normal(*shape).requires_grad_() for shape in ((3, 4), (4, 5), (3, 5)))
    to_left, to_right = drawn.normal(3, 4), drawn.normal(4, 5)
    gradients = torch.autograd.grad(left @ right, (left, right), dy, create_graph=True)
    expected = torch.autograd.grad(gradients, (dy, left, right), (to_left, to_right))
    given = (drawn.placed(one.detach()) for one in (to_left, to_right, dy, left, right))
    yield from zip(npu.matmul_double_backward(*given, [True] * 3), expected, strict=True)


def _bmm_backward(drawn: Drawn) -> Pairs:
    left, right = drawn.normal(2, 3, 4).requires_grad_(), drawn.normal(2, 4, 5).requires_grad_()
    dy = drawn.normal(2, 3, 5)
    placed = [drawn.placed(one.detach()) for one in (dy, left, right)]
    expected = torch.autograd.grad(left @ right, (left, right), dy)
    yield npu.npu_bmm_v2_mat1_backward(*placed, [2, 3, 4]), expected[0]
    yield npu.npu_bmm_v2_mat2_backward(*placed, [2, 4, 5]), expected[1]


def _quantised(drawn: Drawn) -> Pairs:
    x = drawn.normal(4, 16)
    scale = (x.abs().amax(-1) / 127).float()
    found, found_scale = npu.npu_dynamic_quant(drawn.placed(x))
    yield found, (x.float() / scale[:, None]).round().to(torch.int8)
    yield found_scale, scale.double()
    y, offset = drawn.normal(16), drawn.normal(16)
    back = npu.npu_anti_quant(found, drawn.placed(y), offset=drawn.placed(offset))
    yield back, ((found.cpu().double() + offset) * y).half().double()


def _quantised_matmul(drawn: Drawn) -> Pairs:
    left, right = (
        (drawn.normal(*shape) * 50).clamp(-127, 127).round().to(torch.int8) for shape in ((3, 8), (8, 5))
    )
    scale, rows, bias = drawn.normal(5), drawn.normal(3), torch.arange(5, dtype=torch.int32)
    found = npu.npu_quant_matmul(
        left.npu(),
        right.npu(),
        drawn.placed(scale),
        pertoken_scale=drawn.placed(rows),
        bias=bias.npu(),
        output_dtype=torch.float16,
    )
    exact = (left.double() @ right.double() + bias) * scale * rows[:, None]
    yield found.float(), exact.half().double()
    # Scales of eight bits survive the number format of matrix units.
    short = scale.bfloat16().float()
    packed = npu.npu_trans_quant_param(short.npu())
    yield packed & 0xFFFFFFFF, short.view(torch.int32).long() & 0xFFFFFFFF
    yield packed >> 32, torch.full((5,), 1 << 14)


def _shapes(drawn: Drawn) -> Pairs:
    x = drawn.normal(2, 1, 4)
    on = drawn.placed(x)
    yield npu.npu_broadcast(on, [2, 3, 4]), x.expand(2, 3, 4)
    yield npu.npu_transpose(on, [2, 0, 1]), x.permute(2, 0, 1)
    yield npu.npu_reshape(on, [4, 2]), x.reshape(4, 2)
    yield npu.npu_slice(on, [0, 0, 1], [1, 1, 3]), x[:1, :, 1:]
    yield npu.npu_pad(on, [1, 0, 0, 0, 0, 2]), functional.pad(x, (0, 2, 0, 0, 1, 0))
    yield npu.npu_indexing(on, [0, 0, 1], [2, 1, 5], [1, 1, 2], 4, 4), x[:, :, ::2]
    for name, given, out in (
        ("npu_broadcast", ([2, 3, 4],), (2, 3, 4)),
        ("npu_transpose", ([2, 0, 1],), (4, 2, 1)),
        ("npu_reshape", ([4, 2],), (4, 2)),
        ("npu_slice", ([0, 0, 1], [1, 1, 3]), (1, 1, 3)),
        ("npu_indexing", ([0, 0, 1], [2, 1, 5], [1, 1, 2], 4, 4), (2, 1, 2)),
    ):
        into = torch.empty(out, device="npu:0")
        getattr(npu, name).out(on, *given, out=into)
        yield into, getattr(npu, name)(on, *given).cpu().double()


def _confusion(drawn: Drawn) -> Pairs:
    x, dy = drawn.normal(2, 3, 4), drawn.normal(4, 6)
    yield (
        npu.npu_confusion_transpose(drawn.placed(x), [2, 0, 1], [4, 6], True),
        x.permute(2, 0, 1).reshape(4, 6),
    )
    yield npu.npu_confusion_transpose(drawn.placed(x), [1, 0], [6, 4], False), x.reshape(6, 4).t()
    back = npu.npu_confusion_transpose_backward(drawn.placed(dy), [2, 0, 1], [2, 3, 4], False)
    yield back, dy.reshape(4, 2, 3).permute(1, 2, 0)


def _chosen(drawn: Drawn) -> Pairs:
    x = drawn.normal(3, 5)
    on = drawn.placed(x)
    yield (
        npu.npu_one_hot(torch.tensor([2, 0], device="npu:0"), -1, 3, 2, 1),
        torch.eye(3).double()[[2, 0]] + 1,
    )
    yield npu.npu_sort_v2(on, -1, True), x.sort(-1, True).values
    into = torch.empty(3, 5, device="npu:0")
    npu.npu_sort_v2.out(on, -1, True, out=into)
    yield into, x.sort(-1, True).values
    for name, function in (("npu_max", torch.max), ("npu_min", torch.min)):
        values, indices = getattr(npu, name).dim(on, 1, False)
        expected = function(x, 1)
        yield values, expected.values
        yield indices, expected.indices
        back = getattr(npu, f"{name}_backward")(values, 1, indices, [3, 5], False)
        yield back, torch.zeros(3, 5).double().scatter(1, expected.indices[:, None], expected.values[:, None])


def _gathered(drawn: Drawn) -> Pairs:
    x, rows = drawn.normal(4, 3), torch.tensor([1, 1, 3])
    yield npu.npu_gather_sparse_index(drawn.placed(x), rows.npu()), x[rows]
    dy = drawn.normal(3, 3)
    summed = torch.zeros(4, 3).double().index_add(0, rows, dy)
    yield npu.npu_gather_sparse_index_backward(drawn.placed(dy), [4, 3], rows.npu()), summed
    places = torch.tensor([[0, 0], [2, 1]])
    spread = torch.zeros(4, 3).double().scatter_add(1, places, dy[:2, :2])
    yield npu.npu_gather_backward(drawn.placed(dy[:2, :2]), [4, 3], 1, places.npu(), False), spread


def _scattered(drawn: Drawn) -> Pairs:
    x, update = drawn.normal(4, 3), drawn.normal(2, 3)
    expected = x.clone()
    expected[[2, 0]] = update
    rows = torch.tensor([[2], [0]]).npu()
    yield npu.npu_scatter_nd_update(drawn.placed(x), rows, drawn.placed(update)), expected
    own = drawn.placed(x)
    npu.npu_scatter_nd_update_(own, rows, drawn.placed(update))
    yield own, expected
    cache, tokens = drawn.normal(2, 5, 3), drawn.normal(2, 1, 3)
    wanted = cache.clone()
    wanted[0, 1], wanted[1, 4] = tokens[0, 0], tokens[1, 0]
    places = torch.tensor([1, 4]).npu()
    yield npu.scatter_update(drawn.placed(cache), places, drawn.placed(tokens), 1), wanted
    own = drawn.placed(cache)
    npu.scatter_update_(own, places, drawn.placed(tokens), 1)
    yield own, wanted


def _convolution(name: str, dims: int, transposed: bool) -> Formula:
    def compare(drawn: Drawn) -> Pairs:
        one, two, none = [1] * dims, [2] * dims, [0] * dims
        x = drawn.normal(2, 4, *[6] * dims).requires_grad_()
        weight = drawn.normal(4, 2, *[3] * dims).requires_grad_()
        bias = drawn.normal(4).requires_grad_()
        layout = (one, none, two, one, 2) if transposed else (two, one, one, 2)
        placed = [drawn.placed(tensor.detach()) for tensor in (x, weight, bias)]
        y = torch.convolution(x, weight, bias, two, one, one, transposed, none, 2)
        yield getattr(npu, name)(*placed, *layout), y.detach()
        dy = drawn.normal(*y.shape)
        back = getattr(npu, f"{name}_backward")(placed[0], drawn.placed(dy), placed[1], *layout, [True] * 3)
        yield from zip(back, torch.autograd.grad(y, (x, weight, bias), dy), strict=True)
        if not transposed and hasattr(getattr(npu, name), "out"):
            into = torch.empty(y.shape, device="npu:0")
            getattr(npu, name).out(*placed, *layout, out=into)
            yield into, y.detach()

    return compare


def _adam(drawn: Drawn) -> Pairs:
    parameter, first, dy = (drawn.normal(6) for _ in range(3))
    second = drawn.rand(6)
    out = [drawn.placed(one) for one in (parameter, first, second)]
    found = npu.npu_apply_adam.out(0.9, 0.99, 0.1, 0.8, 0.95, 1e-3, drawn.placed(dy), False, False, out=out)
    m, v = 0.8 * first + 0.2 * dy, 0.95 * second + 0.05 * dy**2
    step = 0.1 * (1 - 0.99) ** 0.5 / (1 - 0.9) * m / (v.sqrt() + 1e-3)
    yield from zip((*out, *found), (parameter - step, m, v) * 2, strict=True)


def _adam_w(drawn: Drawn) -> Pairs:
    parameter, first, dy = (drawn.normal(6) for _ in range(3))
    second = drawn.rand(6)
    out = [drawn.placed(one) for one in (parameter, first, second)]
    given = (0.9, 0.99, 0.1, 0.2, 0.8, 0.95, 1e-3, drawn.placed(dy), None, False, True)
    found = npu.npu_apply_adam_w.out(*given, out=out)
    m, v = 0.8 * first - 0.2 * dy, 0.95 * second + 0.05 * dy**2
    denominator = (v / (1 - 0.99 * 0.95)).sqrt() + 1e-3
    step = 0.1 * m / (1 - 0.9 * 0.8) / denominator
    expected = (parameter * (1 - 0.1 * 0.2) - step, m, v)
    yield from zip((*out, *found), expected * 2, strict=True)


def _fourier(drawn: Drawn) -> Pairs:
    x = drawn.normal(3, 8).requires_grad_()
    half = torch.fft.rfft(x)
    dy = torch.complex(drawn.normal(3, 5), drawn.normal(3, 5))
    found = npu.fft_r2c_backward(dy.to(torch.complex64).npu(), [1], 0, True, 8)
    yield found, torch.autograd.grad(half, x, dy)[0]
    whole = half.detach().requires_grad_()
    back = torch.fft.irfft(whole, norm="forward")
    real = drawn.normal(3, 8)
    expected = torch.autograd.grad(back, whole, real)[0]
    yield (
        torch.view_as_real(npu.fft_c2r_backward(drawn.placed(real), [1], 0).cpu()).npu(),
        torch.view_as_real(expected),
    )


def _softmax_loss(drawn: Drawn) -> Pairs:
    x, labels = drawn.normal(3, 5).requires_grad_(), torch.softmax(drawn.normal(3, 5), -1).float().double()
    y = -(labels * torch.log_softmax(x, -1)).sum(-1)
    placed = [drawn.placed(one.detach()) for one in (x, labels)]
    yield npu.npu_softmax_cross_entropy_with_logits(*placed), y.detach()
    dy = drawn.normal(3)
    back = npu.npu_softmax_cross_entropy_with_logits_backward(drawn.placed(dy), *placed)
    yield back, torch.autograd.grad(y, x, dy)[0]


def _group_norm_swish(drawn: Drawn) -> Pairs:
    slope = 0.7
    leaves = [drawn.normal(*shape).requires_grad_() for shape in ((2, 6, 3, 2), (6,), (6,))]
    y = functional.group_norm(leaves[0], 3, leaves[1], leaves[2])
    out = y * torch.sigmoid(slope * y)
    x, weight, bias = (drawn.placed(one.detach()).requires_grad_() for one in leaves)
    found, mean, rstd = npu.npu_group_norm_swish(x, 3, weight, bias, 1e-5, slope)
    grouped = leaves[0].detach().reshape(2, 3, -1)
    yield found.detach(), out.detach()
    yield mean.reshape(2, 3), grouped.mean(-1)
    yield rstd.reshape(2, 3), (grouped.var(-1, unbiased=False) + 1e-5).rsqrt()
    dy = drawn.normal(*out.shape)
    yield from zip(
        torch.autograd.grad(found, (x, weight, bias), drawn.placed(dy)),
        torch.autograd.grad(out, leaves, dy),
        strict=True,
    )


def _named(*names: str) -> tuple[str, ...]:
    return tuple(f"npu::{name}" for name in names)


def _int8_range(drawn: Drawn) -> Pairs:
    """The scale with the least squared error, tried one after the other."""
    x = drawn.normal(4, 8)
    low, high = x.min(), x.max()
    counts = torch.histc(x, 16, float(low), float(high)).cumsum(0)
    bounds = [(counts / x.numel() < share).sum() / 16 * (high - low) + low for share in (1 - 0.99, 0.99)]
    for with_offset in (False, True):
        best: tuple[float, torch.Tensor, torch.Tensor] | None = None
        for factor in torch.arange(0.7, 1.3, 0.1).double():
            if with_offset:
                lower, upper = bounds[0].clamp(max=0), bounds[1].clamp(min=0) * factor
                scale = (upper - lower) / 255
                offset = -(torch.round(lower / scale) + 128)
            else:
                scale, offset = max(bound.abs() for bound in bounds) * factor / 127, torch.zeros(())
            numbers = (torch.round(x / scale) + offset).clamp(-128, 127)
            error = float(((numbers - offset) * scale - x).square().sum())
            if best is None or error < best[0]:
                best = (error, scale, offset)
        assert best is not None
        given = (drawn.placed(one) for one in (x, low.view(1), high.view(1), counts.int()))
        found = torch.ops.npu.npu_ifmr(*given, 0.99, 0.99, 0.7, 1.3, 0.1, with_offset)
        yield from zip(found, (one.view(1).double() for one in best[1:]), strict=True)


FORMULAS: tuple[tuple[tuple[str, ...], Formula], ...] = (
    (_named("npu_add_layer_norm", "npu_add_layer_norm_backward"), _add_layer_norm),
    (_named("npu_deep_norm", "npu_deep_norm_backward"), _deep_norm),
    (_named("npu_add_rms_norm_v2"), _add_rms_norm_v2),
    (_named("npu_add_rms_norm_v2_functional"), _add_rms_norm_v2_functional),
    (_named("npu_add_rms_norm_cast"), _add_rms_norm_cast),
    (_named("npu_gelu_mul"), _same("npu_gelu_mul", _gelu_mul, (3, 8))),
    (_named("npu_mish"), _same("npu_mish", functional.mish, (3, 8))),
    (_named("npu_mish_backward"), _gradients("npu_mish_backward", functional.mish, (3, 8))),
    (_named("npu_group_norm_swish", "npu_group_norm_swish_grad"), _group_norm_swish),
    (_named("npu_masked_softmax_with_rel_pos_bias"), _window_softmax),
    (_named("npu_moe_gating_top_k_softmax_v2"), _gating_v2),
    (_named("npu_interleave_rope"), _interleaved_rope),
    (_named("matmul_double_backward"), _double_backward),
    (_named("npu_bmmV2"), _same("npu_bmmV2", lambda a, b: a @ b, (2, 3, 4), (2, 4, 5), more=([],))),
    (_named("npu_bmm_v2_mat1_backward", "npu_bmm_v2_mat2_backward"), _bmm_backward),
    (_named("npu_linear"), _same("npu_linear", functional.linear, (3, 4), (5, 4), (5,))),
    (_named("npu_linear_backward"), _gradients("npu_linear_backward", functional.linear, (3, 4), (5, 4))),
    (_named("npu_dynamic_quant", "npu_anti_quant"), _quantised),
    (_named("npu_quant_matmul", "npu_trans_quant_param"), _quantised_matmul),
    (
        _named(
            *("npu_broadcast", "npu_transpose", "npu_reshape", "npu_slice", "npu_pad", "npu_indexing"),
            *(
                f"{name}.out"
                for name in ("npu_broadcast", "npu_transpose", "npu_reshape", "npu_slice", "npu_indexing")
            ),
        ),
        _shapes,
    ),
    (_named("npu_confusion_transpose", "npu_confusion_transpose_backward"), _confusion),
    (
        _named(
            *("npu_one_hot", "npu_sort_v2", "npu_sort_v2.out"),
            *("npu_max.dim", "npu_min.dim", "npu_max_backward", "npu_min_backward"),
        ),
        _chosen,
    ),
    (_named("npu_gather_sparse_index", "npu_gather_sparse_index_backward", "npu_gather_backward"), _gathered),
    (
        _named("npu_scatter_nd_update", "npu_scatter_nd_update_", "scatter_update", "scatter_update_"),
        _scattered,
    ),
    (_named("npu_conv2d", "npu_conv2d_backward", "npu_conv2d.out"), _convolution("npu_conv2d", 2, False)),
    (_named("npu_conv3d", "npu_conv3d_backward", "npu_conv3d.out"), _convolution("npu_conv3d", 3, False)),
    (_named("npu_convolution", "npu_convolution_backward"), _convolution("npu_convolution", 2, False)),
    (
        _named("npu_conv_transpose2d", "npu_conv_transpose2d_backward"),
        _convolution("npu_conv_transpose2d", 2, True),
    ),
    (
        _named("npu_convolution_transpose", "npu_convolution_transpose_backward"),
        _convolution("npu_convolution_transpose", 2, True),
    ),
    (_named("npu_ifmr"), _int8_range),
    (_named("npu_apply_adam.out"), _adam),
    (_named("npu_apply_adam_w.out"), _adam_w),
    (_named("fft_r2c_backward", "fft_c2r_backward"), _fourier),
    (
        _named("npu_renorm_backward"),
        _gradients("npu_renorm_backward", lambda x: x.renorm(2, 0, 1.5), (4, 5), more=(2, 0, 1.5)),
    ),
    (
        _named("npu_softmax_cross_entropy_with_logits", "npu_softmax_cross_entropy_with_logits_backward"),
        _softmax_loss,
    ),
)

NOT_SCALED = frozenset(
    _named(
        "npu_trans_quant_param",
        "fft_c2r_backward",
        "npu_anchor_response_flags",
        "npu_nms_rotated",
        "npu_nms_v4",
    )
)
"""Operators whose results are integers or complex numbers."""
