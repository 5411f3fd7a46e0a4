"""Runs an operator that the CPU implements, but not for the arguments that a device accepts.

Called only after the CPU kernel raised an error, so that other calls are not slowed down.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from harness.devices.sim.operators.schema_plan import Args, Kwargs, OperatorPlan

_NO_HALF = re.compile(
    r"not implemented for '(?:Half|BFloat16|ComplexHalf)'|Unsupported dtype (?:Half|BFloat16)"
    r"|Low precision dtypes not supported|(?:Half|BFloat16).*not supported|not supported.*(?:Half|BFloat16)"
)
_NEEDS_LONG = re.compile(
    r"expected scalar type Long but found Int|expected target dtype to be Long\b.*got Int"
)
_CANNOT_GROW = "storage that is not resizable"

Compute = Callable[..., Any]


def compute_otherwise(
    error: Exception, plan: OperatorPlan, compute: Compute, values: list[Any], named: dict[str, Any]
) -> Any:
    """The result of `compute` after it raised `error`, if a conversion helps. Otherwise raises `error`.

    Half types that the CPU lacks are computed in float32 and rounded. int32 indices and classes become int64.
    out= tensors whose memory is too small are replaced in `values` or `named` by tensors that can grow.
    """
    text = str(error)
    if _CANNOT_GROW in text and plan.mutable:
        _let_grow(plan, values, named)
        return compute(*values, **named)
    if _NEEDS_LONG.search(text):
        return _converted(plan, compute, values, named, {torch.int32: torch.int64})
    if _NO_HALF.search(text):
        wider = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
        return _converted(plan, compute, values, named, wider)
    raise error


def _let_grow(plan: OperatorPlan, values: list[Any], named: dict[str, Any]) -> None:
    for position, name in plan.mutable:
        place: Any = values if position < len(values) else named
        key: Any = position if position < len(values) else name
        if isinstance(place[key], torch.Tensor):
            place[key] = place[key].new_empty(0)


def _converted(
    plan: OperatorPlan, compute: Compute, values: Args, named: Kwargs, types: dict[torch.dtype, torch.dtype]
) -> Any:
    narrow = {dtype for value in (*values, *named.values()) for dtype in _types_of(value) if dtype in types}
    args = [_mapped(value, lambda x: x.to(types.get(x.dtype, x.dtype))) for value in values]
    kwargs = {
        name: _mapped(value, lambda x: x.to(types.get(x.dtype, x.dtype))) for name, value in named.items()
    }
    kwargs = {
        name: types.get(value, value) if isinstance(value, torch.dtype) else value
        for name, value in kwargs.items()
    }
    result = compute(*args, **kwargs)
    for position, name in plan.mutable:
        original = values[position] if position < len(values) else named.get(name)
        changed = args[position] if position < len(values) else kwargs.get(name)
        if isinstance(original, torch.Tensor) and original is not changed:
            original.copy_(changed)
    if len(narrow) != 1 or torch.int32 in narrow:
        return result
    (dtype,) = narrow
    back = {torch.float32: dtype, torch.complex64: torch.complex32}
    return _mapped(result, lambda x: x.to(back.get(x.dtype, x.dtype)))


def _types_of(value: Any) -> list[torch.dtype]:
    entries = value if isinstance(value, (list, tuple)) else (value,)
    return [entry.dtype for entry in entries if isinstance(entry, torch.Tensor)]


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(entry, change) for entry in value)
    return value
