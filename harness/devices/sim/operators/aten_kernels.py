"""Installs CPU kernels for every aten operator that computes something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.devices.sim.operators.dispatch import Machine, as_strict, make_kernel
from harness.devices.sim.operators.other_types import computing_in_float32, rounding_once
from harness.devices.sim.operators.schema_plan import plan_of, returns_view
from harness.devices.sim.operators.torch_internals import (
    DEVICE_KEY,
    callable_of,
    decomposed,
    has_kernel,
    overload,
    override,
    schemas,
)
from harness.devices.sim.references import device_kernels, layer_norm, recurrent
from harness.devices.sim.references.matmul import matmul_backward

AUTOGRAD_KEY = "AutogradPrivateUse1"

# Memory, metadata and transfers to and from the device: torch_npu's own C++ code does these with the runtime.
LEFT_TO_TORCH_NPU = frozenset(
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
    """torch.histc on the CPU accepts only floating point; on a device it also accepts integers."""
    exact = x if x.is_floating_point() else x.double()
    return torch.histc(exact, bins, min, max).to(x.dtype)


def writing(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The `out` overload of an operator with one result."""

    def write(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        result = reference(*args, **kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return write


# aten operators that the CPU does not implement, or not for all types that a device accepts.
_REFERENCES: Mapping[str, Callable[..., Any]] = {
    "matmul_backward": matmul_backward,
    # The CPU kernel returns a tensor without memory, which cannot be copied to the device.
    "_efficientzerotensor": torch.zeros,
    "histc": _histc,
    "native_layer_norm": layer_norm.layer_norm,
    "native_layer_norm_backward": layer_norm.layer_norm_backward,
    "_masked_scale": device_kernels.masked_scale,
    "_conv_depthwise2d": device_kernels.conv_depthwise2d,
    "_conv_depthwise2d.out": writing(device_kernels.conv_depthwise2d),
    "mm.dtype": device_kernels.mm_as,
    "mm.dtype_out": writing(device_kernels.mm_as),
    "bmm.dtype": device_kernels.mm_as,
    "bmm.dtype_out": writing(device_kernels.mm_as),
    "addmm.dtype": device_kernels.addmm_as,
    "addmm.dtype_out": writing(device_kernels.addmm_as),
    "baddbmm.dtype": device_kernels.addmm_as,
    "baddbmm.dtype_out": writing(device_kernels.addmm_as),
    "native_batch_norm": device_kernels.native_batch_norm,
    "batch_norm_stats": device_kernels.batch_norm_stats,
    "batch_norm_gather_stats_with_counts": device_kernels.batch_norm_gather_stats_with_counts,
    "batch_norm_elemt": device_kernels.batch_norm_elemt,
    "batch_norm_elemt.out": writing(device_kernels.batch_norm_elemt),
    "batch_norm_backward_reduce": device_kernels.batch_norm_backward_reduce,
    "batch_norm_backward_elemt": device_kernels.batch_norm_backward_elemt,
    # Unlike the CPU's, a packed sequence keeps its padding.
    "_pack_padded_sequence": recurrent.pack_padded_sequence,
    "_thnn_fused_lstm_cell": recurrent.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": recurrent.lstm_cell_backward,
}


def install_aten(library: Any, machine: Machine) -> None:
    """Register the kernels in `library`, a torch.library.Library of namespace aten.

    An operator that torch_npu implements, but the CPU does not, raises NotImplementedError with its name.
    """
    every = tuple(schemas("aten"))
    for name, schema in every:
        on_device, on_cpu = _registered(name, DEVICE_KEY), _registered(name, "CPU")
        computed = on_device or on_cpu or name in _REFERENCES
        if name in LEFT_TO_TORCH_NPU or not computed or returns_view(schema):
            continue
        if not on_device and _registered(name, "CompositeImplicitAutograd"):
            # It decomposes into other operators, which autograd needs. A kernel would hide them from
            # autograd.
            continue
        operator = overload("aten", name)
        if operator is None:
            continue
        compute = _REFERENCES.get(name)
        if compute is None and any(_registered(name, key) for key in _COMPOSITE_KEYS):
            compute = rounding_once(plan_of(operator, schema), callable_of(operator))
        if compute is None:
            override(
                library,
                name,
                refusing_kernel(f"the simulated device does not compute aten::{name}"),
                DEVICE_KEY,
            )
            continue
        override(library, name, make_kernel(plan_of(operator, schema), compute, machine), DEVICE_KEY)
    for name, schema in every:
        if _skips_the_dispatcher(name) and (operator := overload("aten", name)) is not None:
            plan, compute = plan_of(operator, schema), decomposed(operator)
            if name in _KERNELS_OF_GRADIENTS:
                compute = computing_in_float32(plan, compute)
            function = as_strict(plan, compute, machine)
            override(library, name, function, AUTOGRAD_KEY)
    override(library, "scaled_dot_product_attention", _attention, AUTOGRAD_KEY)
    for name, function in _CALLED_DIRECTLY.items():
        if _registered(name, AUTOGRAD_KEY):
            override(library, name, function, AUTOGRAD_KEY)


# Operators whose formula in torch_npu calls other operators through the dispatcher, as was measured.
# It is part of what is tested, so it stays.
_OWN_FORMULAS = frozenset(
    {
        "_pad_packed_sequence",
        "contiguous",
        "kl_div",
        "l1_loss",
        "lstm.data",
        "lstm.input",
        "lstm_cell",
        "matmul",
        "matmul.out",
    }
)

# Operators that torch decomposes, and for whose gradients op-plugin has kernels (its derivatives.yaml): the
# sums of these are not rounded to a half type in between.
_KERNELS_OF_GRADIENTS = frozenset({"repeat_interleave.self_Tensor", "repeat_interleave.self_int"})


def _skips_the_dispatcher(name: str) -> bool:
    """Whether torch decomposes the operator, but torch_npu calls its own kernel, with autograd."""
    return (
        name not in _OWN_FORMULAS
        and _registered(name, AUTOGRAD_KEY)
        and _registered(name, "CompositeImplicitAutograd")
    )


def _registered(name: str, key: str) -> bool:
    return has_kernel(f"aten::{name}", key)


def refusing_kernel(message: str) -> Callable[..., Any]:
    """A kernel for an operator that is not simulated: it raises NotImplementedError with this message."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(message)

    return refuse


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.native_dropout(x, p, train)[0] if train and p else x
    return result


def _dropout_in_place(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or not p:
        return x
    mask = torch.empty_like(x).bernoulli_(1 - p)
    return x.mul_(mask.div_(1 - p) if p < 1 else mask)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """In the type of x, unlike torch's. A class that is not among them has no 1."""
    classes = num_classes if num_classes >= 0 else max(int(x.max()) + 1, 1)
    return (x.unsqueeze(-1) == torch.arange(classes, device=x.device)).to(x.dtype)


# torch_npu computes these with kernels that it calls directly, without the dispatcher. From 2.10 on it
# decomposes dropout instead.
_CALLED_DIRECTLY: Mapping[str, Callable[..., Any]] = {
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
    """Attention by its decomposition; torch_npu would call its fused kernel without the dispatcher."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The decomposition adds the mask to the scores, so a mask of booleans is converted.
        hidden = attn_mask.logical_not()
        attn_mask = torch.zeros(attn_mask.shape, dtype=query.dtype, device=query.device)
        attn_mask = attn_mask.masked_fill_(hidden, float("-inf"))
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(  # noqa: SLF001
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result
