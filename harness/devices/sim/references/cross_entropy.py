"""Cross entropy of logits (tokens, classes) with integer targets."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.devices.sim.references.precision import refuse, wide


def npu_cross_entropy_loss(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,  # noqa: ARG001 - only used with return_zloss
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and log-probabilities in the dtype of the input. The two z-loss results are empty."""
    refuse("npu_cross_entropy_loss", label_smoothing=label_smoothing, return_zloss=return_zloss)
    log_prob = torch.log_softmax(wide(input), -1)
    loss = functional.nll_loss(
        log_prob,
        target,
        weight=None if weight is None else wide(weight).to(log_prob.dtype),
        reduction=reduction,
        ignore_index=ignore_index,
    )
    empty = input.new_empty(0)
    return loss.to(input.dtype), log_prob.to(input.dtype), empty, empty.clone()


def npu_cross_entropy_loss_backward(
    grad_loss: torch.Tensor,
    log_prob: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    grad_zloss: torch.Tensor | None = None,  # noqa: ARG001 - autograd always passes it
    lse_for_zloss: torch.Tensor | None = None,  # noqa: ARG001
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,  # noqa: ARG001
) -> torch.Tensor:
    """Gradient for the logits, from the stored log-probabilities, as on the device."""
    refuse("npu_cross_entropy_loss_backward", label_smoothing=label_smoothing)
    logs = wide(log_prob)
    is_counted = target != ignore_index
    index = target.clamp_min(0)
    share = is_counted.to(logs.dtype)
    if weight is not None:
        share = share * wide(weight).to(logs.dtype)[index]
    if reduction == "mean":
        share = share / share.sum()
    grad = wide(grad_loss).to(logs.dtype)
    one_hot = torch.zeros_like(logs).scatter_(-1, index[:, None], 1.0)
    return ((logs.exp() - one_hot) * (share * grad)[:, None]).to(log_prob.dtype)
