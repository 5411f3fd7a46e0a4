"""Changes of the dtype."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import dtype_of


def npu_dtype_cast(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    dtype: int | torch.dtype,
    input_dtype: int | None = None,  # noqa: ARG001 - only for dtypes that torch does not have
) -> torch.Tensor:
    """A copy in another dtype."""
    return input.to(dtype_of(dtype), copy=True)


def npu_dtype_cast_backward(
    grad: torch.Tensor,
    dtype: int | torch.dtype,
    grad_dtype: int | None = None,  # noqa: ARG001
    input_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """Gradient in the dtype of the input."""
    return npu_dtype_cast(grad, dtype)
