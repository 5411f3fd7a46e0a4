"""Backward operators of losses that torch_npu defines itself. Reductions: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide

_MEAN = 1


def l1_loss_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    target: torch.Tensor,
    reduction: int,
) -> torch.Tensor:
    """Gradient of |input - target| for `input`."""
    return _spread(grad_output, input, reduction) * torch.sign(input - target)


def kl_div_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: int = 1,
    *,
    log_target: bool = False,
) -> torch.Tensor:
    """Gradient of target * (log target - input) for `input`. Targets of zero have no gradient."""
    grad = _spread(grad_output, input, reduction)
    if log_target:
        return -torch.exp(target) * grad
    return torch.where(target > 0, -target * grad, torch.zeros_like(grad))


def kl_div_target_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    reduction: int = 1,
    *,
    log_target: bool = False,
) -> torch.Tensor:
    """Gradient of target * (log target - input) for `target`."""
    grad = _spread(grad_output, input, reduction)
    if log_target:
        return grad * torch.exp(target) * (target - input + 1)
    return torch.where(target > 0, grad * (torch.log(target) + 1 - input), torch.zeros_like(grad))


def npu_binary_cross_entropy_with_logits_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    weight_opt: torch.Tensor | None,
    pos_weight_opt: torch.Tensor | None,
    reduction: int,
) -> torch.Tensor:
    """Gradient for the logits, with a weight for each element and a weight for positive targets."""
    positive = target if pos_weight_opt is None else pos_weight_opt * target
    inner = (positive + 1 - target) * torch.sigmoid(input) - positive
    if weight_opt is not None:
        inner = inner * weight_opt
    return inner * _spread(grad_output, input, reduction)


def _spread(grad: torch.Tensor, like: torch.Tensor, reduction: int) -> torch.Tensor:
    full = grad.expand_as(like)
    return full / like.numel() if reduction == _MEAN else full


def npu_softmax_cross_entropy_with_logits(input: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """-sum(labels * log_softmax(input)) for each row."""
    return -(wide(labels) * torch.log_softmax(wide(input), -1)).sum(-1).to(input.dtype)


def npu_softmax_cross_entropy_with_logits_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    labels: torch.Tensor,
) -> torch.Tensor:
    """Gradient for the input, for labels whose sum is 1 in each row."""
    return (wide(grad).unsqueeze(-1) * (torch.softmax(wide(input), -1) - wide(labels))).to(input.dtype)
