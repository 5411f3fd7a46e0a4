"""RMS norm: y = x / sqrt(mean(x^2) + epsilon) * gamma, over the last dimensions, those of gamma."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide


def npu_rms_norm(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    gamma: torch.Tensor,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in the dtype of the input, and 1/rms (float32), where normalised dimensions have size 1."""
    x = wide(input)
    rstd = torch.rsqrt(x.pow(2).mean(_normalised(input, gamma), keepdim=True) + epsilon)
    return (x * rstd * wide(gamma)).to(input.dtype), rstd


def npu_rms_norm_backward(
    dy: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    gamma: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for input and gamma, the second at least in float32, whatever the type of gamma."""
    x, g = wide(input), wide(dy)
    dims = _normalised(input, gamma)
    normal = x * rstd
    scaled = g * wide(gamma)
    dx = rstd * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))
    leading = tuple(range(input.dim() - gamma.dim()))
    dgamma = (g * normal).sum(leading) if leading else g * normal
    return dx.to(input.dtype), dgamma


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMS norm of x1 + x2. Returns the result, 1/rms and the sum."""
    total = (wide(x1) + wide(x2)).to(x1.dtype)
    y, rstd = npu_rms_norm(total, gamma, epsilon)
    return y, rstd, total


def npu_add_rms_norm_v2(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """`npu_add_rms_norm` that writes the result into x1 and the sum into x2. Returns 1/rms."""
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


def npu_add_rms_norm_v2_functional(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """1/rms, and what `npu_add_rms_norm_v2` writes into x1 and x2."""
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, total


def npu_add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result in float32 and in the dtype of x1, 1/rms and the sum."""
    total = (wide(x1) + wide(x2)).to(x1.dtype)
    y, rstd = npu_rms_norm(wide(total), gamma, epsilon)
    return y, y.to(x1.dtype), rstd, total


def add_rms_norm_bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`npu_add_rms_norm` with beta added to the result."""
    y, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return y if beta is None else (wide(y) + wide(beta)).to(y.dtype), rstd, total


def npu_gemma_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm with 1 + gamma in place of gamma."""
    return npu_rms_norm(x, wide(gamma) + 1.0, epsilon)


def _normalised(tensor: torch.Tensor, gamma: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(tensor.dim() - gamma.dim(), tensor.dim()))
