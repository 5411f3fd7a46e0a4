"""Data that a restart of the device made unsafe, which torch_npu refuses to read.

After an error of memory, torch_npu marks its blocks and sets a flag. Its wrappers of kernels then refuse
marked tensors, and a copy from a tensor that is not marked makes its target safe
(torchnpugen/utils.py, `gen_unsafe_tensor_check`). The simulated device replaces these wrappers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_npu

_C = torch_npu._C  # noqa: SLF001 - torch_npu has no public name for these

are_refused: Callable[[], bool] = _C._get_npu_data_unsafe_flag  # noqa: SLF001
"""Whether torch_npu refuses marked tensors at present."""

COPIES = frozenset({"aten::copy_", "aten::_foreach_copy_"})
"""Operators that replace the data of their first argument by those of their second."""


def refuse_unsafe(tensor: torch.Tensor) -> None:
    """Raise torch_npu's error if the tensor is on the device and its data are marked."""
    # An operator that torch_npu still runs itself, and its own wrapper.
    if not tensor.is_cpu:
        torch.ops.npu.get_npu_format(tensor)


def making_safe(copy: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of one of `COPIES`: marked sources are refused, and a marked target becomes safe."""

    def run(target: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        if are_refused():
            for tensor in _listed(source):
                refuse_unsafe(tensor)
            for tensor in _listed(target):
                if not tensor.is_cpu:
                    _C._update_npu_data_ptr(tensor.untyped_storage())  # noqa: SLF001
        return copy(target, source, *args, **kwargs)

    return run


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
