"""Fused optimizer steps, which write parameters and both moments (`out`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import refuse, wide

Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    use_locking: bool | None,  # noqa: ARG001
    use_nesterov: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> Step:
    """One step of Adam as TensorFlow's ApplyAdam defines it. beta1_power: beta1 to the power of the step."""
    g = wide(grad)
    first = beta1 * wide(out[1]) + (1 - beta1) * g
    second = beta2 * wide(out[2]) + (1 - beta2) * g * g
    rate = lr * _over(math.sqrt(1 - beta2_power), 1 - beta1_power)
    direction = beta1 * first + (1 - beta1) * g if use_nesterov else first
    return _written(out, wide(out[0]) - rate * direction / (epsilon + second.sqrt()), first, second)


def apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> Step:
    """One step of AdamW. beta1_power and beta2_power: the powers of the step before."""
    refuse("npu_apply_adam_w", amsgrad=amsgrad, max_grad_norm=max_grad_norm is not None)
    g = -wide(grad) if maximize else wide(grad)
    first = beta1 * wide(out[1]) + (1 - beta1) * g
    second = beta2 * wide(out[2]) + (1 - beta2) * g * g
    denominator = (second / (1 - beta2_power * beta2)).sqrt() + epsilon
    decayed = wide(out[0]) * (1 - lr * weight_decay)
    return _written(out, decayed - lr * first / (1 - beta1_power * beta1) / denominator, first, second)


def _over(numerator: float, denominator: float) -> float:
    return (
        numerator / denominator
        if denominator
        else math.copysign(math.inf, numerator)
        if numerator
        else math.nan
    )


def _written(out: Sequence[torch.Tensor], *values: torch.Tensor) -> Step:
    parameter, first, second = (target.copy_(value) for target, value in zip(out, values, strict=True))
    return parameter, first, second
