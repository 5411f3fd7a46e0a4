"""All that the simulated device uses of torch beyond its public interface, in one place.

A new torch release that moves one of these breaks here and nowhere else. Checked with 2.7.1 to 2.14.0, each
minor release; `override` also knows the older `Library.impl` without `allow_override` (before 2.8).
"""
# ruff: noqa: SLF001 - the purpose of this module

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

HOST = torch.device("cpu")

current_autograd_node = torch._C._current_autograd_node
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
neg_view = torch._neg_view

GLOO_KNOWS_ALL_KINDS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
"""Whether gloo reduces as it is asked to: before 2.8 it refuses ReduceOp.AVG, before 2.9 it silently sums in
every reduce_scatter."""


def schemas(namespace: str) -> Iterator[tuple[str, Any]]:
    """Every registered operator of a namespace: its name with overload but without namespace, its schema."""
    prefix = namespace + "::"
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(prefix):
            base = schema.name[len(prefix) :]
            yield (f"{base}.{schema.overload_name}" if schema.overload_name else base), schema


def overload(namespace: str, name: str) -> Any:
    """The OpOverload of "base" or "base.overload"; None when torch.ops does not show it."""
    base, _, variant = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, variant or "default", None)


def callable_of(operator: Any) -> Callable[..., Any]:
    """The bare builtin behind an OpOverload, a Python frame less per call."""
    function: Callable[..., Any] = operator._op
    return function


def schema_of(operator: Any) -> Any:
    """The FunctionSchema of an OpOverload."""
    return operator._schema


def host_bytes(pointer: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat CPU tensor over `size` bytes at `pointer`, which must outlive every use of it."""
    storage = torch._C._construct_storage_from_data_pointer(pointer, HOST, size)
    itemsize = torch.empty(0, dtype=dtype, device=HOST).element_size()
    return torch.empty(0, dtype=dtype, device=HOST).set_(storage, 0, (size // itemsize,), (1,))


def override(library: Any, name: str, function: Callable[..., Any], key: str) -> None:
    """Register `function` for an operator under a dispatch key, over whatever is registered there."""
    if "allow_override" in inspect.signature(torch.library.Library.impl).parameters:
        library.impl(name, function, key, allow_override=True)
        return
    torch.library._impls.discard(f"{library.ns}/{name}/{key}")
    library.impl(name, function, key)
