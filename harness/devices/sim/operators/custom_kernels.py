"""Installs the references for torch_npu's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from harness.devices.sim.operators.aten_kernels import writing
from harness.devices.sim.operators.dispatch import Machine, make_kernel
from harness.devices.sim.operators.schema_plan import plan_of
from harness.devices.sim.operators.storage_formats import TAKING_BLOCKS, unfolding_blocks
from harness.devices.sim.operators.torch_internals import DEVICE_KEY, overload, override, schema_of
from harness.devices.sim.references import (
    activation,
    attention,
    boxes,
    cache,
    cast,
    convolution,
    cross_entropy,
    delta_rule,
    device_kernels,
    dropout,
    feed_forward,
    grouped_matmul,
    layer_norm,
    losses,
    matmul,
    moe,
    norm,
    optimizers,
    quantization,
    quantized_activation,
    quantized_norm,
    recurrent,
    regions,
    rotary,
    rotated_boxes,
    routing,
    sampling,
    selected_attention,
    serving_attention,
    shaping,
    spectral,
)

_MODULES: tuple[ModuleType, ...] = (
    activation,
    attention,
    boxes,
    cache,
    cast,
    cross_entropy,
    delta_rule,
    dropout,
    feed_forward,
    grouped_matmul,
    layer_norm,
    losses,
    matmul,
    moe,
    norm,
    quantization,
    quantized_activation,
    quantized_norm,
    recurrent,
    regions,
    rotary,
    rotated_boxes,
    routing,
    sampling,
    selected_attention,
    serving_attention,
    shaping,
    spectral,
)

# References that take all arguments by the names of the schema: the operators differ in their positions.
_BY_NAME = {
    "npu_fusion_attention": attention.fusion_attention,
    "npu_fusion_attention_grad": attention.fusion_attention_grad,
    "npu_fusion_attention_v2": attention.fusion_attention,
    "npu_fusion_attention_grad_v2": attention.fusion_attention_grad_v2,
    "npu_fusion_attention_v3": attention.fusion_attention_with_tensors,
    "npu_fusion_attention_grad_v3": attention.fusion_attention_grad,
}

# References whose name differs from the operator's, and further names and overloads of the same operator.
_ALIASES = {
    "_npu_ciou": boxes.ciou_and_angle,
    "npu_giou_backward": boxes.giou_backward,
    "npu_diou_backward": boxes.diou_backward,
    "_npu_dtype_cast": cast.npu_dtype_cast,
    "_npu_dtype_cast_backward": cast.npu_dtype_cast_backward,
    "_npu_moe_token_unpermute": moe.token_unpermute_with_copies,
    "_npu_moe_token_unpermute_with_routing_map": moe.token_unpermute_with_routing_map,
    "npu_moe_token_unpermute_grad_v2": moe.token_unpermute_with_copies_grad,
    "_dropout_with_byte_mask": dropout.dropout_with_byte_mask,
    "_dropout_with_byte_mask_backward": dropout.dropout_with_byte_mask_backward,
    "_npu_dropout": dropout.dropout_with_mask,
    "_npu_dropout_gen_mask.Tensor": dropout.seeded_mask,
    "kl_div_backward": losses.kl_div_backward,
    "kl_div_target_backward": losses.kl_div_target_backward,
    "l1_loss_backward": losses.l1_loss_backward,
    "fast_gelu": activation.npu_fast_gelu,
    "npu_grouped_matmul.List": grouped_matmul.npu_grouped_matmul,
    "matmul_double_backward": matmul.matmul_double_backward,
    "scatter_update": shaping.scatter_update,
    "scatter_update_": shaping.scatter_update_,
    "npu_max.dim": shaping.largest,
    "npu_min.dim": shaping.smallest,
    "npu_max_backward": shaping.chosen_backward,
    "npu_min_backward": shaping.chosen_backward,
    "npu_conv2d": convolution.convolution,
    "npu_conv3d": convolution.convolution,
    "npu_convolution": convolution.convolution,
    "npu_conv2d_backward": convolution.convolution_backward,
    "npu_conv3d_backward": convolution.convolution_backward,
    "npu_convolution_backward": convolution.convolution_backward,
    "npu_conv_transpose2d": convolution.transposed,
    "npu_convolution_transpose": convolution.transposed,
    "npu_conv_transpose2d_backward": convolution.transposed_backward,
    "npu_convolution_transpose_backward": convolution.transposed_backward,
    "npu_apply_adam.out": optimizers.apply_adam,
    "npu_apply_adam_w.out": optimizers.apply_adam_w,
    "batch_norm_reduce": device_kernels.batch_norm_reduce,
    "batch_norm_gather_stats_update": device_kernels.batch_norm_gather_stats_update,
    "fft_r2c_backward": spectral.fft_r2c_backward,
    "fft_c2r_backward": spectral.fft_c2r_backward,
}


def references() -> Mapping[str, Callable[..., Any]]:
    """Operator name in namespace `npu` -> reference, which computes it on CPU tensors."""
    by_name = {
        name: function
        for module in _MODULES
        for name, function in vars(module).items()
        if name.startswith("npu_") and getattr(function, "__module__", "") == module.__name__
    }
    return {**by_name, **_BY_NAME, **_ALIASES}


def _with_names(schema: Any, reference: Callable[..., Any]) -> Callable[..., Any]:
    """`reference` with each argument by its name, of which the operators spell two in two ways."""
    names = [argument.name for argument in schema.arguments]

    def named(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return reference(**{name.replace("tockens", "tokens"): value for name, value in given.items()})

    return named


def _with_out_overloads(by_name: Mapping[str, Callable[..., Any]]) -> Mapping[str, Callable[..., Any]]:
    written = {
        f"{name}.out": writing(function)
        for name, function in by_name.items()
        if (operator := overload("npu", f"{name}.out")) is not None and len(schema_of(operator).returns) == 1
    }
    return {**written, **by_name}


def _into_given(operator: Any) -> Callable[..., Any]:
    """An `out` overload with a list of results, which its schema does not mark as written."""

    def write(*args: Any, out: list[torch.Tensor], workspace: object = None, **kwargs: Any) -> Any:  # noqa: ARG001
        for target, result in zip(out, operator(*args, **kwargs), strict=True):
            # A sum of the softmax that was not asked for has no elements, here or where it would go.
            if target.numel() and result.numel():
                target.copy_(result.reshape(target.shape))
        return tuple(out)

    return write


def no_workspace(query: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
    """Memory that a captured kernel may use. The references need none."""
    return torch.empty(32, dtype=torch.uint8, device=query.device)


_IN_TASK_GROUPS = (
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_fusion_attention_v3",
    "npu_fusion_attention_grad_v3",
)


def install_attention_in_graphs(library: Any) -> None:
    """The overloads of fused attention that task groups of captured graphs contain."""
    for name in _IN_TASK_GROUPS:
        if overload("npu", f"{name}.out") is not None:
            override(library, f"{name}.out", _into_given(overload("npu", name)), DEVICE_KEY)
        if overload("npu", f"_{name}_get_max_workspace") is not None:
            override(library, f"_{name}_get_max_workspace", no_workspace, DEVICE_KEY)


def install_custom(library: Any, machine: Machine) -> tuple[str, ...]:
    """Register the references in `library` (namespace npu). Returns the names of the operators."""
    installed = []
    for name, function in _with_out_overloads(references()).items():
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
    plan = plan_of(operator, schema)
    if name in _BY_NAME:
        reference = _with_names(schema, reference)
        plan = replace(plan, draws=attention.draws_mask) if "grad" not in name else plan

    def compute(*args: Any, **kwargs: Any) -> Any:
        value = reference(*args, **kwargs)
        return value[:results] if results > 1 else value

    kernel = make_kernel(plan, compute, machine)
    override(library, name, unfolding_blocks(kernel) if name in TAKING_BLOCKS else kernel, DEVICE_KEY)
