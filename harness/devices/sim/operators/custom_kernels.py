"""Installs the references for torch_npu's own operators."""

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
    dropout,
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
    dropout,
    losses,
    matmul,
    moe,
    norm,
    rotary,
    routing,
    sampling,
    serving_attention,
)

# References whose name differs from the operator's, and further names and overloads of the same operator.
_ALIASES = {
    "_npu_dtype_cast": cast.npu_dtype_cast,
    "_npu_dtype_cast_backward": cast.npu_dtype_cast_backward,
    "_npu_moe_token_unpermute": moe.token_unpermute_with_copies,
    "npu_moe_token_unpermute_grad_v2": moe.token_unpermute_with_copies_grad,
    "_npu_dropout": dropout.dropout_with_mask,
    "_npu_dropout_gen_mask.Tensor": dropout.seeded_mask,
    "kl_div_backward": losses.kl_div_backward,
    "kl_div_target_backward": losses.kl_div_target_backward,
    "l1_loss_backward": losses.l1_loss_backward,
    "fast_gelu": activation.npu_fast_gelu,
    "npu_grouped_matmul.List": matmul.npu_grouped_matmul,
}


def references() -> Mapping[str, Callable[..., Any]]:
    """Operator name in namespace `npu` -> reference, which computes it on CPU tensors."""
    by_name = {
        name: function
        for module in _MODULES
        for name, function in vars(module).items()
        if name.startswith("npu_") and getattr(function, "__module__", "") == module.__name__
    }
    return {**by_name, **_ALIASES}


def install_custom(library: Any, machine: Machine) -> tuple[str, ...]:
    """Register the references in `library` (namespace npu). Returns the names of the operators."""
    installed = []
    for name, function in references().items():
        operator = overload("npu", name)
        if operator is not None:
            install_reference(library, name, operator, function, machine)
            installed.append(name)
    return tuple(installed)


def install_reference(
    library: Any, name: str, operator: Any, reference: Callable[..., Any], machine: Machine
) -> None:
    """Register the kernel of one operator, which computes it with `reference`.

    Releases differ in the number of results (npu_fusion_attention_grad has 4, later 5). A reference returns
    all of them, and the kernel as many as the operator's schema has.
    """
    schema = schema_of(operator)
    results = len(schema.returns)

    def compute(*args: Any, **kwargs: Any) -> Any:
        value = reference(*args, **kwargs)
        return value[:results] if results > 1 else value

    override(library, name, make_kernel(plan_of(operator, schema), compute, machine), DEVICE_KEY)
