"""The precision references compute in."""

from __future__ import annotations

import torch

# Numbers of torch.ScalarType, which operator schemas pass for a dtype (c10/core/ScalarType.h).
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
    15: torch.bfloat16,
}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or in float64 when it is that: half precisions are storage only."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def dtype_of(value: int | torch.dtype) -> torch.dtype:
    """A dtype from what a kernel is handed: the dtype or its number."""
    return _SCALAR_TYPES[value] if isinstance(value, int) else value


def refuse(operator: str, **arguments: object) -> None:
    """Raise for arguments a reference does not compute, naming operator and argument."""
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(f"the simulated device does not compute {operator} with {name}")
