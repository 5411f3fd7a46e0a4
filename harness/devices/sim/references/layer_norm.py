"""Layer norms of a sum: y = (x - mean) / sqrt(var + epsilon) * gamma + beta, over the dimensions of gamma."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import wide

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> Gradients:
    """The result, mean, 1/std (both float32) and x1 + x2, which is only written if it is asked for."""
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    total = wide(x1) + wide(x2)
    mean, rstd, y = _normalised(total, gamma, beta, epsilon)
    written = total if additional_output else torch.full_like(total, float("nan"))
    return y.to(dtype), mean, rstd, written.to(dtype)


def npu_add_layer_norm_backward(
    dy_opt: torch.Tensor | None,
    x1: torch.Tensor,
    x2: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor,
    gamma: torch.Tensor,
    dsum_opt: torch.Tensor | None,
) -> Gradients:
    """Gradients for x1, x2, and at least in float32 for gamma and beta. dsum_opt: that for the sum."""
    total = wide(x1) + wide(x2)
    dy = torch.zeros_like(total) if dy_opt is None else wide(dy_opt)
    for_sum, for_gamma, for_beta = _gradients(dy, total, gamma, mean, rstd)
    for_sum = for_sum if dsum_opt is None else for_sum + wide(dsum_opt)
    return for_sum.to(x1.dtype), for_sum.to(x2.dtype), for_gamma, for_beta


def npu_deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    beta: torch.Tensor,
    gamma: torch.Tensor,
    alpha: float = 0.3,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, 1/std and the layer norm of alpha * x + gx (arXiv 2203.00555)."""
    mean, rstd, y = _normalised(alpha * wide(x) + wide(gx), gamma, beta, epsilon)
    return mean, rstd, y.to(x.dtype)


def npu_deep_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gx: torch.Tensor,
    gamma: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    alpha: float = 0.3,
) -> Gradients:
    """Gradients for x, gx, beta and gamma."""
    for_sum, for_gamma, for_beta = _gradients(wide(dy), alpha * wide(x) + wide(gx), gamma, mean, rstd)
    return (alpha * for_sum).to(x.dtype), for_sum.to(gx.dtype), for_beta, for_gamma


def layer_norm(
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch's layer norm, mean and 1/std; the last two at least in float32, as op-plugin allocates them."""
    x = wide(input)
    factors = [None if values is None else wide(values).to(x.dtype) for values in (weight, bias)]
    y, mean, rstd = torch.native_layer_norm(x, list(normalized_shape), *factors, eps)
    return y.to(input.dtype), mean, rstd


def layer_norm_backward(
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients for input, weight and bias as far as they are asked for, the last two at least in float32."""
    x = wide(input)
    factors = [None if values is None else wide(values).to(x.dtype) for values in (weight, bias)]
    given = wide(grad_out), x, list(normalized_shape), mean.to(x.dtype), rstd.to(x.dtype), *factors
    dx, *others = torch.ops.aten.native_layer_norm_backward(*given, list(output_mask))
    asked = zip(output_mask[1:], others, strict=True)
    return (dx.to(input.dtype) if output_mask[0] else None), *(
        x if is_asked else None for is_asked, x in asked
    )


def npu_layer_norm_eval(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch's layer norm."""
    factors = [None if values is None else wide(values) for values in (weight, bias)]
    return torch.nn.functional.layer_norm(wide(input), list(normalized_shape), *factors, eps).to(input.dtype)


def npu_group_norm_silu(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """silu of torch's group norm, and the mean and 1/std of each sample's groups, in the input's dtype."""
    y, mean, rstd = _group_norm(input, weight, bias, group, eps)
    return tuple(result.to(input.dtype) for result in (torch.nn.functional.silu(y), mean, rstd))


def npu_group_norm_swish(
    input: torch.Tensor,  # noqa: A002
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y * sigmoid(swish_scale * y) of torch's group norm y, and mean and 1/std of each sample's groups."""
    y, mean, rstd = _group_norm(input, weight, bias, num_groups, 1e-5 if eps is None else eps)
    slope = 1.0 if swish_scale is None else swish_scale
    return tuple(result.to(input.dtype) for result in (y * torch.sigmoid(slope * y), mean, rstd))


def npu_group_norm_swish_grad(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    grad_input_mask: Sequence[bool],
    swish_scale: float | None = 1.0,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients for input, weight and bias, as far as they are asked for, from the statistics of before."""
    slope = 1.0 if swish_scale is None else swish_scale
    x = input.double()
    per_channel = [1, -1, *[1] * (x.dim() - 2)]
    grouped = x.reshape(len(x), num_groups, -1)
    statistics = [values.double().reshape(len(x), num_groups, 1) for values in (mean, rstd)]
    normal = ((grouped - statistics[0]) * statistics[1]).reshape(x.shape)
    y = normal * weight.double().reshape(per_channel) + bias.double().reshape(per_channel)
    gate = torch.sigmoid(slope * y)
    dy = grad.double() * gate * (1 + slope * y * (1 - gate))
    others = [dim for dim in range(x.dim()) if dim != 1]
    scaled = (dy * weight.double().reshape(per_channel)).reshape(grouped.shape)
    unit = normal.reshape(grouped.shape)
    inner = scaled - scaled.mean(-1, keepdim=True) - unit * (scaled * unit).mean(-1, keepdim=True)
    found = (inner * statistics[1]).reshape(x.shape), (dy * normal).sum(others), dy.sum(others)
    return tuple(
        value.to(given.dtype) if is_asked else None
        for value, given, is_asked in zip(found, (input, weight, bias), grad_input_mask, strict=True)
    )


def _group_norm(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = wide(input)
    factors = [None if values is None else wide(values) for values in (weight, bias)]
    samples, channels = x.shape[:2]
    y, mean, rstd = torch.native_group_norm(
        x, *factors, samples, channels, x[0].numel() // channels, groups, eps
    )
    return y, mean, rstd


def _normalised(
    total: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dims = tuple(range(total.dim() - gamma.dim(), total.dim()))
    mean = total.mean(dims, keepdim=True)
    rstd = torch.rsqrt((total - mean).square().mean(dims, keepdim=True) + epsilon)
    return mean, rstd, (total - mean) * rstd * wide(gamma) + wide(beta)


def _gradients(
    dy: torch.Tensor, total: torch.Tensor, gamma: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for the sum, gamma and beta."""
    dims = tuple(range(total.dim() - gamma.dim(), total.dim()))
    leading = tuple(range(total.dim() - gamma.dim()))
    normal = (total - wide(mean)) * wide(rstd)
    scaled = dy * wide(gamma)
    inner = scaled - scaled.mean(dims, keepdim=True) - normal * (scaled * normal).mean(dims, keepdim=True)
    summed = (dy * normal, dy) if not leading else ((dy * normal).sum(leading), dy.sum(leading))
    return inner * wide(rstd), *summed
