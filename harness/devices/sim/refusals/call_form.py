"""Describes calls of operators, so that another process can repeat them without their numbers.

`key_of` is for the hot path: calls with equal keys differ only in what no check of torch_npu is expected to
read. `spec_of` has everything that is needed to make the call again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

MOST_HOST_NUMBERS = 256
"""Host tensors with more elements are repeated with zeros."""

_TRUE, _FALSE = ("bool", True), ("bool", False)
_SAME = (int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
DEVICE_TYPE = "npu"
#: What classes of tensors have that do not take the place of the kernels.
_PLAIN: Any = torch.Tensor.__torch_dispatch__


class NoFormError(Exception):
    """An argument cannot be described."""


class TracedError(Exception):
    """An argument has no numbers: the call is traced, for example by `torch.compile`, and not computed."""


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor on the device. same: the place of the first that is the same object, among these tensors."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    index: int
    acl_format: int
    same: int


@dataclass(frozen=True)
class HostTensor:
    """A tensor on the host. values: None if there are too many."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: Any


@dataclass(frozen=True)
class Generator:
    """A generator of the device, or of the host."""

    device: str


@dataclass(frozen=True)
class CallSpec:
    """A call of the operator `name`, for example "aten::sort.stable"."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def key_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """What identifies a call of one operator. NoFormError for an argument of another kind, TracedError for a
    call that is not computed."""
    if kwargs:
        return tuple(map(_key, args)), tuple((name, _key(value)) for name, value in kwargs.items())
    return tuple(map(_key, args))


def _key(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        if type(value).__torch_dispatch__ is not _PLAIN:
            raise TracedError
        if not value.is_cpu:
            return value.shape, value.stride(), value.dtype, value.get_device()
        if not value.dim():
            return value.dtype, _key(value.item())
        few = value.numel() <= MOST_HOST_NUMBERS
        return value.shape, value.dtype, tuple(value.flatten().tolist()) if few else None
    kind = type(value)
    if kind is bool:
        # True == 1, so a boolean must not be its own key.
        return _TRUE if value else _FALSE
    if kind in _SAME:
        return cast("Hashable", value)
    if kind is float:
        return _range(value)
    if kind is list or kind is tuple:
        return tuple(map(_key, value))
    if kind is complex:
        return _range(value.real), _range(value.imag)
    if isinstance(value, torch.Generator):
        return str(value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise TracedError
    raise NoFormError(kind.__name__)


def _range(value: float) -> str:
    """What checks distinguish: they compare real numbers with 0 and 1 at most."""
    if not math.isfinite(value):
        return str(value)
    if value in {0.0, 1.0}:
        return f"={value}"
    return "<0" if value < 0 else "<1" if value < 1 else ">1"


def spec_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], format_of: Callable[[torch.Tensor], int]
) -> CallSpec:
    """The call as plain data. format_of: the storage format of a device tensor."""
    seen: list[torch.Tensor] = []

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_cpu:
                few = value.numel() <= MOST_HOST_NUMBERS
                return HostTensor(tuple(value.shape), value.dtype, value.tolist() if few else None)
            seen.append(value)
            return DeviceTensor(
                shape=tuple(value.shape),
                stride=value.stride(),
                offset=value.storage_offset(),
                dtype=value.dtype,
                index=value.get_device(),
                acl_format=format_of(value),
                same=next(place for place, other in enumerate(seen) if other is value),
            )
        if isinstance(value, torch.Generator):
            return Generator(value.device.type)
        if isinstance(value, (list, tuple)):
            return [described(entry) for entry in value]
        return value

    try:
        named = {key: described(value) for key, value in kwargs.items()}
        return CallSpec(name, tuple(map(described, args)), named)
    finally:
        # `described` refers to itself, so only the garbage collector ends its references to the tensors.
        seen.clear()


def arguments_of(spec: CallSpec, base_formats: frozenset[int]) -> tuple[list[Any], dict[str, Any]]:
    """New arguments as the spec describes them, with arbitrary numbers in device tensors."""
    made: list[torch.Tensor] = []

    def build(value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            is_first = value.same == len(made)
            made.append(_device_tensor(value, base_formats) if is_first else made[value.same])
            return made[-1]
        if isinstance(value, HostTensor):
            if value.values is None:
                return torch.zeros(value.shape, dtype=value.dtype)
            return torch.tensor(value.values, dtype=value.dtype).reshape(value.shape)
        if isinstance(value, Generator):
            return None
        if isinstance(value, list):
            return [build(entry) for entry in value]
        return value

    try:
        named = {name: build(value) for name, value in spec.kwargs.items()}
        return [build(value) for value in spec.args], named
    finally:
        made.clear()


def _device_tensor(form: DeviceTensor, base_formats: frozenset[int]) -> torch.Tensor:
    device = torch.device(DEVICE_TYPE, form.index)
    if form.acl_format not in base_formats:
        made: torch.Tensor = torch.ops.npu.empty_with_format(
            list(form.shape), dtype=form.dtype, device=device, acl_format=form.acl_format
        )
        return made
    if not form.offset:
        return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
    last = sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True))
    size = form.offset + last + 1 if 0 not in form.shape else form.offset
    flat = torch.empty(size, dtype=form.dtype, device=device)
    return flat.as_strided(form.shape, form.stride, form.offset)
