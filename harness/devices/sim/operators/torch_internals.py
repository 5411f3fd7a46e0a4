"""The private parts of torch that the simulated device uses.

They are collected here, so that a torch release that moves one of them breaks only this module. Tested with
each minor release from 2.7.1 to 2.14.0. `override` also supports `Library.impl` without `allow_override`
(torch before 2.8).
"""
# ruff: noqa: SLF001 - this module exists to use private members

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

HOST = torch.device("cpu")
DEVICE_KEY = "PrivateUse1"

current_autograd_node = torch._C._current_autograd_node
neg_view = torch._neg_view


def schemas(namespace: str) -> Iterator[tuple[str, Any]]:
    """Every registered operator of a namespace: "base" or "base.overload", and its schema."""
    prefix = namespace + "::"
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(prefix):
            base = schema.name[len(prefix) :]
            yield (f"{base}.{schema.overload_name}" if schema.overload_name else base), schema


def has_kernel(name: str, key: str) -> bool:
    """Whether namespace::base.overload has a kernel for a dispatch key; False for an unknown operator."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    except RuntimeError:
        return False


def overload(namespace: str, name: str) -> Any:
    """The OpOverload of "base" or "base.overload"; None when torch.ops does not show it."""
    base, _, variant = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, variant or "default", None)


def callable_of(operator: Any) -> Callable[..., Any]:
    """The builtin function behind an OpOverload. Calling it directly saves a Python frame."""
    function: Callable[..., Any] = operator._op
    return function


def call_host_kernel(operator: Any, *args: Any) -> Any:
    """Call the CPU kernel of an OpOverload, whatever the devices of the arguments are."""
    return operator._op_dk(torch._C.DispatchKey.CPU, *args)


def decomposed(operator: Any) -> Callable[..., Any]:
    """torch's own decomposition of an OpOverload into other operators, which autograd differentiates."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd

    def run(*args: Any, **kwargs: Any) -> Any:
        return operator._op_dk(key, *args, **kwargs)

    return run


def call_kernel(operator: Any, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel that an OpOverload has for a dispatch key, whatever the arguments are."""
    return operator._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)


def present_kernel(name: str, key: str) -> Callable[..., Any] | None:
    """The present kernel of namespace::base for a key, also after it is replaced; None before torch 2.9."""
    if not hasattr(torch.library, "get_kernel") or not has_kernel(name, key):
        return None
    kernel = torch.library.get_kernel(name, key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return lambda *args: kernel.call_boxed(keys, *args)


def schema_of(operator: Any) -> Any:
    """The FunctionSchema of an OpOverload."""
    return operator._schema


def host_bytes(pointer: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat CPU tensor over `size` bytes at `pointer`. The memory must outlive the tensor."""
    storage = torch._C._construct_storage_from_data_pointer(pointer, HOST, size)
    itemsize = torch.empty(0, dtype=dtype, device=HOST).element_size()
    return torch.empty(0, dtype=dtype, device=HOST).set_(storage, 0, (size // itemsize,), (1,))


def override(library: Any, name: str, function: Callable[..., Any], key: str) -> None:
    """Register `function` for an operator under a dispatch key, in place of what is registered there."""
    if "allow_override" in inspect.signature(torch.library.Library.impl).parameters:
        library.impl(name, function, key, allow_override=True)
        return
    torch.library._impls.discard(f"{library.ns}/{name}/{key}")
    library.impl(name, function, key)
