"""Puts the references under torch_npu's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from harness.devices.sim.operators.aten_kernels import DEVICE_KEY
from harness.devices.sim.operators.dispatch import Machine, make_kernel
from harness.devices.sim.operators.schema_plan import plan_of
from harness.devices.sim.operators.torch_internals import overload, override, schema_of
from harness.devices.sim.references import (
    activation,
    attention,
    cache,
    cast,
    cross_entropy,
    losses,
    matmul,
    moe,
    norm,
    rotary,
    routing,
    sampling,
    serving_attention,
)

_MODULES: tuple[ModuleType, ...] = (
    activation,
    attention,
    cache,
    cast,
    cross_entropy,
    losses,
    matmul,
    moe,
    norm,
    rotary,
    routing,
    sampling,
    serving_attention,
)

# Operators that are another one under a second name or overload.
_ALSO = {
    "_npu_dtype_cast": cast.npu_dtype_cast,
    "_npu_dtype_cast_backward": cast.npu_dtype_cast_backward,
    "_npu_moe_token_unpermute": moe.kept_token_unpermute,
    "npu_moe_token_unpermute_grad_v2": moe.kept_token_unpermute_grad,
    "kl_div_backward": losses.kl_div_backward,
    "kl_div_target_backward": losses.kl_div_target_backward,
    "l1_loss_backward": losses.l1_loss_backward,
    "fast_gelu": activation.npu_fast_gelu,
    "npu_grouped_matmul.List": matmul.npu_grouped_matmul,
}


def references() -> Mapping[str, Callable[..., Any]]:
    """Operator name in namespace `npu` -> reference on CPU tensors."""
    found = {
        name: function
        for module in _MODULES
        for name, function in vars(module).items()
        if name.startswith("npu_") and getattr(function, "__module__", "") == module.__name__
    }
    return {**found, **_ALSO}


def install_custom(library: Any, machine: Machine) -> tuple[str, ...]:
    """Register the references in `library` (namespace npu); the names that this torch_npu has."""
    installed = []
    for name, function in references().items():
        operator = overload("npu", name)
        if operator is None:
            continue
        schema = schema_of(operator)
        compute = _trimmed(function, len(schema.returns))
        override(library, name, make_kernel(plan_of(operator, schema), compute, machine), DEVICE_KEY)
        installed.append(name)
    return tuple(installed)


def _trimmed(function: Callable[..., Any], results: int) -> Callable[..., Any]:
    """Older torch_npu return fewer results: npu_fusion_attention_grad gave 4, later 5."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return value[:results] if results > 1 else value

    return compute
