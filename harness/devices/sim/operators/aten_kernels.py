"""Puts CPU kernels under every aten operator of the device that computes something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.sim.operators.dispatch import Machine, make_kernel
from harness.devices.sim.operators.schema_plan import plan_of, returns_view
from harness.devices.sim.operators.torch_internals import callable_of, has_kernel, overload, override, schemas
from harness.devices.sim.references.matmul import matmul_backward

DEVICE_KEY = "PrivateUse1"
AUTOGRAD_KEY = "AutogradPrivateUse1"

# Memory, metadata and transfers between host and runtime: torch_npu's own C++ does these on the runtime.
KEPT = frozenset(
    {
        "_has_compatible_shallow_copy_type",
        "_lazy_clone",
        "_local_scalar_dense",
        "_pin_memory",
        "_reshape_alias",
        "alias",
        "as_strided",
        "as_strided_",
        "contiguous",
        "empty.memory_format",
        "empty_like",
        "empty_strided",
        "is_pinned",
        "is_set_to",
        "new_empty_strided",
        "pin_memory",
        "record_stream",
        "resize_",
        "resize_as_",
        "set_",
        "set_.source_Storage",
        "set_.source_Storage_storage_offset",
        "set_.source_Tensor",
        "unfold",
        "view",
    }
)

_COMPOSITE_KEYS = (
    "CPU",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def _histc(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:  # noqa: A002
    """CPU's own knows floating point only; a device counts integers, too."""
    exact = x if x.is_floating_point() else x.double()
    return torch.histc(exact, bins, min, max).to(x.dtype)


# aten operators that only accelerators implement, or with types that only they take.
_REFERENCES: Mapping[str, Callable[..., Any]] = {
    "matmul_backward": matmul_backward,
    # A tensor without memory cannot be on a device whose memory is real.
    "_efficientzerotensor": torch.zeros,
    "histc": _histc,
}


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """replaced: torch_npu kernels that CPU kernels stand in for. added: operators torch_npu itself lacks.

    uncovered: operators with a torch_npu kernel and no CPU kernel; calling one fails with its name.
    """

    replaced: tuple[str, ...]
    added: tuple[str, ...]
    uncovered: tuple[str, ...]


def install_aten(library: Any, machine: Machine) -> Coverage:
    """Register the kernels in `library`, a torch.library.Library of namespace aten."""
    replaced: list[str] = []
    added: list[str] = []
    uncovered: list[str] = []
    for name, schema in schemas("aten"):
        own, on_cpu = _registered(name, DEVICE_KEY), _registered(name, "CPU")
        if name in KEPT or not (own or on_cpu) or returns_view(schema):
            continue
        if not own and _registered(name, "CompositeImplicitAutograd"):
            # Its decomposition is also its autograd formula, which a kernel of our own would cut off.
            continue
        operator = overload("aten", name)
        if operator is None:
            continue
        compute = _REFERENCES.get(name)
        if compute is None and any(_registered(name, key) for key in _COMPOSITE_KEYS):
            compute = callable_of(operator)
        if compute is None:
            uncovered.append(name)
            override(library, name, _refusing(name), DEVICE_KEY)
            continue
        override(library, name, make_kernel(plan_of(operator, schema), compute, machine), DEVICE_KEY)
        (replaced if own else added).append(name)
    override(library, "scaled_dot_product_attention", _attention, AUTOGRAD_KEY)
    for name, function in _BELOW_DISPATCH.items():
        if _registered(name, AUTOGRAD_KEY):
            override(library, name, function, AUTOGRAD_KEY)
    return Coverage(replaced=tuple(replaced), added=tuple(added), uncovered=tuple(uncovered))


def _registered(name: str, key: str) -> bool:
    try:
        return bool(has_kernel(f"aten::{name}", key))
    except RuntimeError:
        return False


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"the simulated device does not compute aten::{name}")

    return refuse


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.native_dropout(x, p, train)[0] if train and p else x
    return result


def _dropout_in_place(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or not p:
        return x
    kept = torch.empty_like(x).bernoulli_(1 - p)
    return x.mul_(kept.div_(1 - p) if p < 1 else kept)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    classes = num_classes if num_classes >= 0 else int(x.max()) + 1
    zeros = torch.zeros((*x.shape, classes), dtype=torch.int64, device=x.device)
    return zeros.scatter_(-1, x.unsqueeze(-1), 1)


# torch_npu calls kernels of its own for these below the dispatcher; dropout it decomposes from 2.10 on.
_BELOW_DISPATCH: Mapping[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "dropout_": _dropout_in_place,
    "one_hot": _one_hot,
}


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Decomposed: torch_npu calls its fused kernel below the dispatcher, where nothing can stand in."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The decomposition adds its mask: True would count as 1 instead of "visible".
        hidden = attn_mask.logical_not()
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        attn_mask = attn_mask.masked_fill_(hidden, float("-inf"))
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result
