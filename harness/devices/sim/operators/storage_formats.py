"""Private storage formats, such as FRACTAL_NZ, as far as a program can see them.

A tensor cast to a private format reports that format and has the size of storage that the format needs, but
the numbers lie in it as in a tensor without one: no kernel of the simulated device depends on the layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.devices.sim.operators.dispatch import Machine
from harness.devices.sim.operators.torch_internals import DEVICE_KEY, overload, override, present_kernel

# aclFormat: NCHW, NHWC, ND, NDHWC, NCDHW, NC, NCL. Casts among them change only the name of the layout.
_BASE_FORMATS = frozenset({0, 1, 2, 27, 30, 35, 47})
_FRACTAL_NZ = 29

TAKING_BLOCKS = frozenset({"npu_grouped_matmul_swiglu_quant", "npu_grouped_matmul_swiglu_quant_v2"})
"""Operators that take matrices as the blocks of FRACTAL_NZ: (groups, n / w, k / 16, 16, w)."""


def unfolding_blocks(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of one of `TAKING_BLOCKS`, where views of cast matrices as blocks have their rows again.

    Here the numbers of a cast matrix lie row by row, so that such a view mixes them up. Blocks that a program
    arranged itself have a base format and stay.
    """

    def unfolded(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [unfolded(item) for item in value]
        if not isinstance(value, torch.Tensor) or value.dim() != 5 or value.is_cpu:
            return value
        if int(torch.ops.npu.get_npu_format(value)) != _FRACTAL_NZ:
            return value
        groups, blocks, bands, height, width = value.shape
        return value.view(groups, bands * height, blocks * width)

    def run(*args: Any, **kwargs: Any) -> Any:
        return kernel(*map(unfolded, args), **{name: unfolded(value) for name, value in kwargs.items()})

    return run


def install_formats(library: Any, machine: Machine) -> None:
    """Register the casts in `library` (namespace npu). The wheel's own npu_format_cast calls them."""
    format_of = torch.ops.npu.get_npu_format
    empty_with_format = torch.ops.npu.empty_with_format

    def converted(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
        result: torch.Tensor = empty_with_format(
            list(tensor.shape), dtype=tensor.dtype, device=tensor.device, acl_format=acl_format
        )
        machine.alias(result).copy_(machine.alias(tensor))
        return result

    # torch_npu's own kernel names a base format anew without any operator of the device.
    rename = present_kernel("npu::_npu_format_cast", DEVICE_KEY)

    def is_kept(tensor: torch.Tensor, acl_format: int) -> bool:
        present = int(format_of(tensor))
        if present in _BASE_FORMATS and acl_format in _BASE_FORMATS:
            if rename is not None:
                rename(tensor, acl_format)
            return True
        return present == acl_format

    def cast(
        tensor: torch.Tensor, acl_format: int, _customize_dtype: int | None = None, **_types: Any
    ) -> Any:
        return tensor if is_kept(tensor, acl_format) else converted(tensor, acl_format)

    def cast_in_place(
        tensor: torch.Tensor, acl_format: int, _customize_dtype: int | None = None, **_types: Any
    ) -> Any:
        if not is_kept(tensor, acl_format):
            other = converted(tensor, acl_format)
            tensor.set_(other.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return tensor

    for name, function in (
        ("_npu_format_cast", cast),
        ("_npu_format_cast.aclnn", cast),
        ("npu_format_cast_.acl_format", cast_in_place),
    ):
        if overload("npu", name) is not None:
            override(library, name, function, DEVICE_KEY)
