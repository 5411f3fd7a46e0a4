"""The precision in which references compute, and functions that all of them use."""

from __future__ import annotations

import torch

# The numbers of torch.ScalarType, by which operators receive a dtype (c10/core/ScalarType.h).
_SCALAR_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or unchanged in float64. References compute half precisions in float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def dtype_of(value: int | torch.dtype) -> torch.dtype:
    """The dtype that a kernel receives as a dtype or as its number."""
    return _SCALAR_TYPES[value] if isinstance(value, int) else value


def refuse(operator: str, **arguments: object) -> None:
    """NotImplementedError for the first argument with a true value: the reference does not support it."""
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(f"the simulated device does not compute {operator} with {name}")
