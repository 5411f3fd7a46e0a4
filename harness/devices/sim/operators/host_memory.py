"""Makes CPU tensors that share the memory of device tensors, and device tensors from CPU results.

The memory of the simulated device is host memory, so a CPU tensor for a device tensor needs no copy. The
addresses of device tensors have a bit that makes them invalid for the host; only this module accesses them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from harness.devices.sim.operators.host_memory_address import HOST_ADDRESS
from harness.devices.sim.operators.torch_internals import HOST, host_bytes, neg_view
from harness.devices.sim.operators.unsafe_data import are_refused, refuse_unsafe

# Flat CPU tensors over device storages are cached, because creating one costs as much as a small operator.
_CACHED_BASES = 4096


def alias_maker() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a device tensor to a CPU tensor over the same memory.

    The device tensor must outlive the CPU tensor. For a tensor without storage the function returns a new
    empty CPU tensor, which can be resized. Data that a restart made unsafe are refused.
    """
    bases: dict[tuple[int, int, Any], torch.Tensor] = {}

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        if are_refused():
            refuse_unsafe(tensor)
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not size:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=HOST)
        key = (storage.data_ptr() & HOST_ADDRESS, size, tensor.dtype)
        base = bases.get(key)
        if base is None:
            if len(bases) >= _CACHED_BASES:
                bases.clear()
            # Tensors made in inference mode cannot be written outside of it, but this one is used in both.
            with torch.inference_mode(False):
                base = bases[key] = host_bytes(*key)
        view = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            view = view.conj()
        return neg_view(view) if tensor.is_neg() else view

    return alias


def device_copier(
    alias: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.device], torch.Tensor]:
    """A function that copies a CPU result into a new device tensor of the same shape and strides."""
    move = ctypes.memmove
    empty_strided = torch.empty_strided

    def to_device(result: torch.Tensor, device: torch.device) -> torch.Tensor:
        if result.layout is not torch.strided:
            raise NotImplementedError(f"the simulated device does not support {result.layout} tensors")
        out = empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
        size = result.numel() * result.element_size()
        if not size:
            return out
        source = result.data_ptr()
        # Lazy results (conjugates, negatives, zeros without memory) need a copy by torch.
        if source and result.is_contiguous() and not result.is_conj() and not result.is_neg():
            move(out.data_ptr() & HOST_ADDRESS, source, size)
        else:
            alias(out).copy_(result)
        return out

    return to_device
