"""Gradients of Fourier transforms and of renorm, which torch_npu's own autograd formulas call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# torch's renorm adds it to the norm, which may be zero (aten/src/ATen/native/Normalization.cpp).
_RENORM_EPSILON = 1e-7


def fft_r2c_backward(
    grad: torch.Tensor, dim: Sequence[int], normalization: int, onesided: bool, last_dim_size: int
) -> torch.Tensor:
    """Gradient for the real input of _fft_r2c. last_dim_size: of the input, in the last of `dim`."""
    full = grad
    if onesided:
        shape = list(grad.shape)
        shape[dim[-1]] = last_dim_size
        full = grad.new_zeros(shape)
        full.narrow(dim[-1], 0, grad.shape[dim[-1]]).copy_(grad)
    return torch.ops.aten._fft_c2c(full, list(dim), normalization, False).real.contiguous()  # noqa: SLF001


def fft_c2r_backward(grad: torch.Tensor, dim: Sequence[int], normalization: int) -> torch.Tensor:
    """Gradient for the complex input of _fft_c2r: what is not its own mirror image counts twice."""
    result: torch.Tensor = torch.ops.aten._fft_r2c(grad, list(dim), normalization, True)  # noqa: SLF001
    twice = grad.shape[dim[-1]] - result.shape[dim[-1]]
    if twice > 0:
        result.narrow(dim[-1], 1, twice).mul_(2)
    return result


def npu_renorm_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    p: float,
    dim: int,
    maxnorm: float,
) -> torch.Tensor:
    """Gradient for the input of renorm, which scales slices along `dim` whose norm exceeds maxnorm."""
    dims = [place for place in range(input.dim()) if place != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, p, dims, keepdim=True)
    inner = (input * grad).sum(dims, keepdim=True)
    inverse = 1 / (norm + _RENORM_EPSILON)
    of_norm = inner * input.sign() * (input.abs() / norm).pow(p - 1)
    of_norm = of_norm.masked_fill((norm == 0) | ((input == 0) & (p < 2)), 0.0)
    scaled = maxnorm * inverse * (grad - inverse * of_norm)
    return torch.where(norm > maxnorm, scaled, grad)
