"""Operators that the CPU lacks, or for which torch_npu calls a kernel of its own without the dispatcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.devices.sim.operators.torch_internals import overload  # noqa: E402 - needs the guards above

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")
NPU = torch.device("npu", 0)
Case = Callable[[torch.Tensor], torch.Tensor]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.1).to(dtype)


def needs(name: str) -> None:
    if overload("npu", name) is None:
        pytest.skip(f"this torch_npu has no {name}")


def layer(kind: type[torch.nn.RNNBase]) -> Case:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return kind(4, 3, 2, bidirectional=True).to(x.device)(x.view(4, 2, 4))[0]

    return run


CASES: dict[str, Case] = {
    "lstm": layer(torch.nn.LSTM),
    "gru": layer(torch.nn.GRU),
    "slogdet": lambda x: torch.slogdet(x[:, :4] + 5 * torch.eye(4, device=x.device))[1],
    "nanmean": lambda x: x.nanmean(0),
    "repeat": lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 3], device=x.device), 0),
    "repeat_all": lambda x: x.repeat_interleave(3, 0),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "renorm_1": lambda x: x.renorm(1.5, 1, 0.5),
    "gather": lambda x: x.gather(1, torch.zeros(4, 2, dtype=torch.int64, device=x.device)),
    "rfft": lambda x: torch.fft.rfft(x).abs(),
    "irfft": lambda x: torch.fft.irfft(torch.complex(x, x)),
    "affine_grid": lambda x: functional.affine_grid(x[:2, :6].reshape(2, 2, 3), [2, 1, 3, 3], False),
    "fill_diagonal": lambda x: (x * 2).fill_diagonal_(1.0),
    "depthwise": lambda x: functional.conv2d(x.view(1, 2, 4, 4), drawn(2, 1, 3, 3).to(x.device), groups=2),
    "matmul_twice": lambda x: torch.autograd.grad((x.T @ x).square().sum(), x, create_graph=True)[0],
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_those_of_the_cpu(name: str) -> None:
    found = []
    for device in (torch.device("cpu"), NPU):
        x = drawn(4, 8).to(device).requires_grad_()
        result = CASES[name](x)
        weights = torch.linspace(0.5, 1.5, result.numel()).view(result.shape).to(device)
        (result * weights).sum().backward()
        assert x.grad is not None
        found.append((result.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("repeats", [torch.tensor([1, 70, 0, 300]), 300], ids=["tensor", "number"])
@pytest.mark.parametrize("dim", [0, -1, None])
def test_gradients_of_repetitions_are_not_added_in_a_half_type(
    dim: int | None, repeats: torch.Tensor | int, dtype: torch.dtype
) -> None:
    shape = (4,) if dim is None else (4, 4)
    weights = drawn(*torch.zeros(shape).repeat_interleave(repeats, dim).shape, dtype=dtype)
    found = []
    for x, given in ((drawn(*shape), weights.float()), (drawn(*shape, dtype=dtype).to(NPU), weights.to(NPU))):
        times = repeats.to(x.device) if isinstance(repeats, torch.Tensor) else repeats
        x.requires_grad_().repeat_interleave(times, dim).backward(given)
        assert x.grad is not None
        found.append(x.grad.cpu().to(dtype))
    assert torch.equal(found[1], found[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_softmax_of_a_half_type_as_float32_is_float32(dtype: torch.dtype) -> None:
    x = drawn(4, 8, dtype=dtype)
    result = x.to(NPU).softmax(-1, dtype=torch.float32)
    torch.testing.assert_close(result.cpu(), x.float().softmax(-1))


def test_out_arguments_of_kernels_beside_the_dispatcher() -> None:
    x, y = drawn(3, 4), drawn(4, 3).T.contiguous()
    for function in (torch.min, torch.max):
        out = torch.empty(3, 4, device=NPU)
        function(x.to(NPU), y.to(NPU), out=out)
        assert torch.equal(out.cpu(), function(x, y))


def test_results_grow_into_an_out_argument_of_a_private_format() -> None:
    needs("npu_format_cast")
    out = torch_npu.npu_format_cast(torch.empty(2, 16, device=NPU), 29)
    x = drawn(3, 5, 4)
    torch.amin(x.to(NPU), 1, out=out)
    assert torch.equal(out.cpu(), x.amin(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    x, y = drawn(64, dtype=dtype), drawn(64, dtype=dtype).flip(0)
    image = drawn(1, 2, 7, dtype=dtype)

    def both(run: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
        exact = run(*(tensor.float() for tensor in tensors)).to(dtype)
        assert torch.equal(run(*(tensor.to(NPU) for tensor in tensors)).cpu(), exact)

    both(lambda a, b: torch.sub(a, b, alpha=0.3), x, y)
    own = torch._foreach_sub([x.to(NPU)], [y.to(NPU)], alpha=0.3)[0].cpu()
    expected = x - y * 0.3 if dtype is torch.float16 else (x.float() - 0.3 * y.float()).to(dtype)
    assert torch.equal(own, expected)
    if dtype is torch.bfloat16:
        own = torch._foreach_add([x.to(NPU)], [y.to(NPU)], alpha=0.3)[0].cpu()
        assert torch.equal(own, (x.float() + 0.3 * y.float()).to(dtype))
    weight = drawn(1, 2, 2, 3, dtype=dtype)
    both(lambda a, b: torch._C._nn.slow_conv_transpose2d(a[None], b, [2, 3]), image, weight)
    both(lambda a: functional.interpolate(a, size=16, mode="linear"), image)
    rows = torch.arange(256) % 4
    both(
        lambda a: torch.ops.aten.embedding_dense_backward(a, rows.to(a.device), 4, -1, False),
        drawn(256, 3, dtype=dtype),
    )


def test_a_half_type_with_int32_classes_needs_both_conversions() -> None:
    x, classes = drawn(2, 3, dtype=torch.float16), torch.tensor([[0, 2, -1]] * 2, dtype=torch.int32)
    result = functional.multilabel_margin_loss(x.to(NPU), classes.to(NPU))
    expected = functional.multilabel_margin_loss(x.float(), classes.long()).to(torch.float16)
    assert result.cpu() == expected


def test_a_python_scalar_where_the_schema_has_a_tensor() -> None:
    bits = torch.tensor([4, 8], device=NPU)
    assert bits.__ior__(3).tolist() == [7, 11]


def test_swapped_memory_is_not_written_past_its_end() -> None:
    if not hasattr(torch_npu, "empty_with_swapped_memory"):
        pytest.skip("this torch_npu has no swapped memory")
    held = [
        torch_npu.empty_with_swapped_memory([1024], dtype=torch.float32, device="npu:0") for _ in range(6)
    ]
    for number, tensor in enumerate(held):
        # torch_npu rounds addresses up to pages, and so does the runtime.
        assert tensor.data_ptr() % 4096 == 0
        tensor.fill_(float(number))
    assert [tensor[-1].item() for tensor in held] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_batch_norm_over_ranks_equals_one_over_all_rows() -> None:
    """The operators that a synchronised batch norm calls, on two halves of a batch."""
    x = drawn(6, 3, 5)
    parts = [part.to(NPU) for part in x.split([2, 4])]
    mean, invstd = torch.ops.aten.batch_norm_stats(parts[0], 1e-5)
    other = torch.ops.aten.batch_norm_stats(parts[1], 1e-5)
    counts = torch.tensor([10.0, 20.0], device=NPU)
    running = torch.zeros(3, device=NPU), torch.ones(3, device=NPU)
    mean, invstd = torch.ops.aten.batch_norm_gather_stats_with_counts(
        parts[0],
        torch.stack([mean, other[0]]),
        torch.stack([invstd, other[1]]),
        *running,
        0.1,
        1e-5,
        counts,
    )
    weight, bias = drawn(3), drawn(3)
    layer = torch.nn.BatchNorm1d(3)
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    leaf = x.clone().requires_grad_()
    expected = layer(leaf)
    dy = drawn(6, 3, 5).flip(0)
    expected.backward(dy)
    got = [
        torch.ops.aten.batch_norm_elemt(part, weight.to(NPU), bias.to(NPU), mean, invstd, 1e-5)
        for part in parts
    ]
    torch.testing.assert_close(torch.cat(got).cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(running[1].cpu(), layer.running_var, rtol=1e-4, atol=1e-5)
    grads = [part.to(NPU) for part in dy.split([2, 4])]
    reduced = [
        torch.ops.aten.batch_norm_backward_reduce(g, p, mean, invstd, weight.to(NPU), True, True, True)
        for g, p in zip(grads, parts, strict=True)
    ]
    sums = [sum(one[place] for one in reduced) for place in range(4)]
    torch.testing.assert_close(sums[2].cpu(), layer.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums[3].cpu(), layer.bias.grad, rtol=1e-4, atol=1e-4)
    back = [
        torch.ops.aten.batch_norm_backward_elemt(
            g, p, mean, invstd, weight.to(NPU), sums[0], sums[1], counts.int()
        )
        for g, p in zip(grads, parts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(back).cpu(), leaf.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_layer_norms_of_sums(alpha: float | None) -> None:
    x, other = drawn(3, 8), drawn(3, 8).flip(0)
    gamma, beta = drawn(8), drawn(8).flip(0)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, other, gamma, beta)]
    total = leaves[0] * (1 if alpha is None else alpha) + leaves[1]
    expected = functional.layer_norm(total, (8,), leaves[2], leaves[3], 1e-5)
    dy = drawn(3, 8).flip(1)
    gradients = torch.autograd.grad(expected, leaves, dy)
    device = [tensor.to(NPU) for tensor in (x, other, gamma, beta)]
    if alpha is None:
        y, mean, rstd, written = torch.ops.npu.npu_add_layer_norm(*device, 1e-5, True)
        got = torch.ops.npu.npu_add_layer_norm_backward(dy.to(NPU), *device[:2], rstd, mean, device[2], None)
        torch.testing.assert_close(written.cpu(), x + other)
        unwritten = torch.ops.npu.npu_add_layer_norm(*device, 1e-5, False)[3]
        assert unwritten.isnan().all()
    else:
        mean, rstd, y = torch.ops.npu.npu_deep_norm(*device[:2], device[3], device[2], alpha, 1e-5)
        back = torch.ops.npu.npu_deep_norm_backward(dy.to(NPU), *device[:3], mean, rstd, alpha)
        got = (back[0], back[1], back[3], back[2])
    torch.testing.assert_close(y.cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tuple(one.cpu() for one in got), gradients, rtol=1e-3, atol=1e-4)


def test_dynamic_quantisation_and_its_matmul() -> None:
    x, weight = drawn(5, 16) - 0.5, drawn(16, 8).t().contiguous() - 0.5
    rows, row_scale = torch.ops.npu.npu_dynamic_quant(x.to(NPU))
    columns, column_scale = torch.ops.npu.npu_dynamic_quant(weight.to(NPU))
    assert rows.dtype is torch.int8
    assert int(rows.abs().max()) == 127
    torch.testing.assert_close(rows.cpu() * row_scale.cpu()[:, None], x, rtol=0, atol=0.005)
    product = torch.ops.npu.npu_quant_matmul(
        rows, columns.t(), column_scale, pertoken_scale=row_scale, output_dtype=torch.float16
    )
    torch.testing.assert_close(product.cpu().float(), x @ weight.t(), rtol=0.02, atol=0.03)
    with pytest.raises(NotImplementedError, match="of other types than int8"):
        torch.ops.npu.npu_quant_matmul(x.to(NPU), weight.to(NPU).t(), column_scale)


def test_int4_is_packed_from_the_lowest_bits() -> None:
    x = torch.tensor([[7.0, -7.0, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0]], device=NPU)
    packed, scale = torch.ops.npu.npu_dynamic_quant(x, dst_type=16)
    assert scale.tolist() == [1.0]
    values = [(int(packed.item()) >> 4 * place & 0xF) for place in range(8)]
    assert values == [7, 9, 1, 0, 0, 0, 0, 15]


@pytest.mark.parametrize("first", [False, True])
def test_confusion_transpose_and_its_gradient(first: bool) -> None:
    x = drawn(2, 3, 4)
    leaf = x.to(NPU).requires_grad_()
    shape = [4, 6] if first else [6, 4]
    perm = [2, 0, 1] if first else [1, 0]
    result = torch_npu.npu_confusion_transpose(leaf, perm, shape, first)
    own = x.clone().requires_grad_()
    expected = own.permute(perm).reshape(shape) if first else own.reshape(shape).permute(perm)
    weights = drawn(4, 6).flip(0)
    (result * weights.to(NPU)).sum().backward()
    (expected * weights).sum().backward()
    assert torch.equal(result.detach().cpu(), expected.detach())
    assert torch.equal(leaf.grad.cpu(), own.grad)


def test_slices_rows_and_caches_are_written_where_they_belong() -> None:
    cache = torch.zeros(2, 5, 3, device=NPU)
    update = drawn(2, 1, 3).to(NPU)
    torch.ops.npu.scatter_update_(cache, torch.tensor([1, 3], device=NPU), update, 1)
    assert torch.equal(cache[0, 1], update[0, 0])
    assert torch.equal(cache[1, 3], update[1, 0])
    assert int((cache != 0).sum()) == 6
    rows = torch.zeros(4, 3, device=NPU)
    torch.ops.npu.npu_scatter_nd_update_(rows, torch.tensor([[2], [0]], device=NPU), drawn(2, 3).to(NPU))
    assert torch.equal(rows[[2, 0]].cpu(), drawn(2, 3))
    # Releases before 2.10 refuse the size -1.
    assert torch.ops.npu.npu_slice(rows, [0, 1], [2, 2]).shape == (2, 2)


@pytest.mark.parametrize("combine", ["mul", "div"])
def test_combined_lists_of_float16_round_each_step(combine: str) -> None:
    x, y, z = (drawn(64, dtype=torch.float16).roll(shift) for shift in (0, 3, 7))
    product = y * z if combine == "mul" else y / z
    expected = x + product * 0.3
    lists = [[tensor.to(NPU)] for tensor in (x, y, z)]
    operator = getattr(torch, f"_foreach_addc{combine}")
    for scalars in (0.3, [0.3], torch.tensor([0.3], dtype=torch.float64)):
        assert torch.equal(operator(*lists, scalars)[0].cpu(), expected)
        changed = [x.to(NPU)]
        getattr(torch, f"_foreach_addc{combine}_")(changed, *lists[1:], scalars)
        assert torch.equal(changed[0].cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_between_half_types_and_float32(dtype: torch.dtype) -> None:
    x = drawn(4, 8, dtype=dtype)
    for name in ("_softmax", "_log_softmax"):
        operator = getattr(torch.ops.aten, name)
        found = operator(x.to(NPU), -1, True)
        assert found.dtype is torch.float32
        torch.testing.assert_close(found.cpu(), operator(x.float(), -1, False))
        backward = getattr(torch.ops.aten, f"{name}_backward_data")
        grad, output = drawn(4, 8), operator(x.float(), -1, False)
        result = backward(grad.to(NPU), output.to(NPU), -1, dtype)
        assert torch.equal(result.cpu(), backward(grad, output, -1, torch.float32).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("left", [True, False])
def test_the_gradient_of_a_matrix_for_a_batch_is_one_product(dtype: torch.dtype, *, left: bool) -> None:
    matrix, batch = drawn(7, 7, dtype=dtype), drawn(50, 7, 7, dtype=dtype) - 0.6
    found = []
    for device, kind in (("cpu", torch.float32), (NPU, dtype)):
        one = matrix.to(device, kind).requires_grad_()
        other = batch.to(device, kind)
        (one @ other if left else other @ one).sum().backward()
        assert one.grad is not None
        found.append(one.grad.cpu().to(dtype))
    torch.testing.assert_close(found[1], found[0], rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_classes_become_rows_of_the_type_of_the_classes() -> None:
    for dtype in (torch.int32, torch.int64):
        x = torch.tensor([[0, 2], [1, 3]], dtype=dtype)
        found = functional.one_hot(x.to(NPU), 3).cpu()
        assert found.dtype is dtype
        assert found.tolist() == [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]]]


def test_packed_sequences_keep_their_padding() -> None:
    """As in op-plugin's own tests: the data has all steps of all sequences."""
    x, lengths = drawn(4, 3, 2), [4, 2, 1]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(NPU), lengths)
    assert torch.equal(packed.data.cpu(), x.view(12, 2))
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    padded, found = torch.nn.utils.rnn.pad_packed_sequence(packed)
    assert torch.equal(padded.cpu(), x)
    assert found.tolist() == lengths


@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (1, True), (2, False), (2, True)])
def test_an_lstm_of_packed_sequences_equals_that_of_the_cpu(layers: int, *, bidirectional: bool) -> None:
    torch.manual_seed(7)
    model = torch.nn.LSTM(4, 3, layers, bidirectional=bidirectional)
    x, found = drawn(5, 3, 4), []
    for device in (torch.device("cpu"), NPU):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), [5, 3, 1])
        output, states = model.to(device)(packed)
        found.append([torch.nn.utils.rnn.pad_packed_sequence(output)[0], *states])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-5)


def test_an_lstm_casts_its_weights_to_the_type_of_its_input() -> None:
    cell = torch.nn.LSTMCell(4, 3)
    x = drawn(2, 4)
    expected = cell(x)
    found = cell.to(NPU)(x.half().to(NPU))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is torch.float16
        torch.testing.assert_close(one.cpu().float(), other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_batch_norm_without_training_has_statistics_of_each_channel(dtype: torch.dtype) -> None:
    x, found = drawn(3, 2, 4, dtype=dtype), []
    for device in (torch.device("cpu"), NPU):
        model = torch.nn.BatchNorm1d(2).eval().to(device)
        given = x.clone().to(device).requires_grad_()
        model(given).square().sum().backward()
        assert given.grad is not None
        found.append(given.grad.cpu())
    torch.testing.assert_close(found[1], found[0])
    one, two = (torch.ones(2, device=NPU) for _ in range(2))
    _, mean, deviation = torch.native_batch_norm(x.to(NPU), None, None, one, two, False, 0.1, 1e-5)
    assert mean.shape == deviation.shape == (2,)


@pytest.mark.parametrize("alpha", [1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_sum_with_relu_is_rounded_once(dtype: torch.dtype, alpha: float) -> None:
    x, y = drawn(7, 9, dtype=dtype) - 0.6, 0.5 - drawn(9, dtype=dtype)
    found = torch._VF._add_relu(x.to(NPU), y.to(NPU), alpha=alpha)
    expected = (x.double() + alpha * y.double()).clamp(min=0)
    assert found.dtype is dtype
    torch.testing.assert_close(found.cpu(), expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
