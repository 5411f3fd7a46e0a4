"""Operators of aten that only devices have: torch has no CPU kernel and no decomposition for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import wide


def mm_as(left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """The product of half matrices in float32 (out_dtype), without rounding it to their type first."""
    return torch.matmul(wide(left), wide(right)).to(out_dtype)


def addmm_as(
    added: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """beta * added + alpha * left @ right in `out_dtype`."""
    product = alpha * torch.matmul(wide(left), wide(right))
    return (product if beta == 0 else product + beta * wide(added)).to(out_dtype)


def masked_scale(input: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:  # noqa: A002
    """input * mask * scale."""
    return (wide(input) * mask * scale).to(input.dtype)


def conv_depthwise2d(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    _kernel_size: Sequence[int],
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """A convolution in which each channel has filters of its own."""
    return torch.conv2d(
        input, weight, bias, list(stride), list(padding), list(dilation), groups=input.shape[1]
    )


def native_batch_norm(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """torch's own; without training, nothing is written to the statistics of a batch, one per channel."""
    results: tuple[torch.Tensor, ...] = torch.ops.aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training:
        return results
    return (results[0], *(one.new_full((input.shape[1],), torch.nan) for one in results[1:]))


def batch_norm_stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
    """Mean and 1/std of each channel, in float32."""
    x, dims = wide(input), _other_dims(input)
    mean = x.mean(dims)
    return mean, torch.rsqrt((x - _channels(mean, input)).square().mean(dims) + eps)


def batch_norm_gather_stats_with_counts(
    input: torch.Tensor,  # noqa: A002, ARG001
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1/std over all ranks, from those of each rank (ranks, channels). Changes the running ones."""
    weights = wide(counts).reshape(-1, 1)
    total = weights.sum()
    means = wide(mean)
    together = (weights * means).sum(0) / total
    squares = weights * (wide(invstd).pow(-2) - eps + (means - together).square())
    variance = squares.sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(together.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = squares.sum(0) / (total - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return together, torch.rsqrt(variance + eps)


def batch_norm_reduce(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002, ARG001
    """The sums of the values and of their squares in each channel, in float32."""
    values, dims = wide(input), _other_dims(input)
    return values.sum(dims), values.square().sum(dims)


def batch_norm_gather_stats_update(
    input: torch.Tensor,  # noqa: A002, ARG001
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / standard deviation (channels,) of all devices, from the sums of the values (`mean`) and of
    their squares (`invstd`) of each device (devices, channels), as `batch_norm_reduce` returns them, and from
    the numbers of values. Writes the running statistics, if there are any."""
    total = wide(counts).sum()
    together = wide(mean).sum(0) / total
    variance = wide(invstd).sum(0) / total - together.square()
    for running, new in ((running_mean, together), (running_var, variance)):
        if running is not None:
            running.copy_((1 - momentum) * wide(running) + momentum * new)
    return together.to(mean.dtype), torch.rsqrt(variance + eps).to(mean.dtype)


def batch_norm_elemt(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,  # noqa: ARG001 - is in invstd
) -> torch.Tensor:
    """The normalised input."""
    x = (wide(input) - _channels(mean, input)) * _channels(invstd, input)
    x = x if weight is None else x * _channels(weight, input)
    return (x if bias is None else x + _channels(bias, input)).to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor, ...]:
    """Sums over this rank of dy and of dy * (x - mean), and the gradients for weight and bias."""
    dims = _other_dims(input)
    dy = wide(grad_out)
    summed = dy.sum(dims)
    moved = (dy * (wide(input) - _channels(mean, input))).sum(dims)
    dtype = summed.dtype if weight is None else weight.dtype
    empty = summed.new_empty(0)
    return (
        summed if input_g else empty,
        moved if input_g else empty.clone(),
        (moved * wide(invstd)).to(dtype) if weight_g else empty.clone(),
        summed.to(dtype) if bias_g else empty.clone(),
    )


def batch_norm_backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """Gradient for the input, from the sums over all ranks."""
    total = wide(count).sum()
    inverse = _channels(invstd, input)
    moved = wide(input) - _channels(mean, input)
    inner = wide(grad_out) - _channels(sum_dy, input) / total
    inner = inner - moved * inverse.square() * _channels(sum_dy_xmu, input) / total
    scale = inverse if weight is None else inverse * _channels(weight, input)
    return (inner * scale).to(input.dtype)


def _other_dims(x: torch.Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value for each channel, in the shape in which it is broadcast over x."""
    return wide(values).reshape(1, -1, *[1] * (x.dim() - 2))
