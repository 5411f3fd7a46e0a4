"""Cross entropy of logits (tokens, classes) with integer targets, also of a vocabulary split over ranks.

Sources for the split vocabulary: torch_npu-npu_fused_linear_online_max_sum.md,
torch_npu-npu_fused_cross_entropy_loss_with_max_sum.md and
torch_npu-npu_fused_linear_cross_entropy_loss_with_max_sum_backward.md of op-plugin.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.devices.sim.references.packed_bits import packed_bits, unpacked_bits
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


def npu_fused_linear_online_max_sum(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    target: torch.Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """What a rank knows of the loss of input (tokens, h) @ weight (own classes, h)^T before any exchange.

    Each row's largest logit, the sum of exponentials above it, the logit of the target above it (0 for
    targets of other ranks), a bit for each target of another rank (the first in the highest bit, filled up
    with 1), the target's own number (0 for others), and the logits on request. Logits are rounded, as
    Megatron's are between its two operators.
    """
    logits = (wide(input) @ wide(weight).T).to(input.dtype)
    largest = wide(logits).amax(-1)
    above = wide(logits) - largest[:, None]
    is_foreign = (target < vocab_start_index) | (target > vocab_end_index)
    own = torch.where(is_foreign, 0, target - vocab_start_index).to(target.dtype)
    predicted = above.gather(1, own.long()[:, None])[:, 0].masked_fill(is_foreign, 0)
    mask = packed_bits(is_foreign, filler=1, highest_first=True)
    return largest, above.exp().sum(-1), predicted, mask, own, logits if return_logits else None


def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: torch.Tensor,
    sum_exp_logits: torch.Tensor,
    predicted_logits: torch.Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: torch.Tensor | None = None,  # noqa: A002
    weight: torch.Tensor | None = None,
    vocab_parallel_logits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss of each token from what all ranks know together, and the softmax of this rank's logits."""
    refuse(
        "npu_fused_cross_entropy_loss_with_max_sum",
        label_smoothing=label_smoothing,
        input=input is not None,
        weight=weight is not None,
    )
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, None
    return loss, (wide(vocab_parallel_logits) - logits_max[:, None]).exp() / sum_exp_logits[:, None]


def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    target_mask: torch.Tensor,
    masked_target: torch.Tensor,
    label_smoothing: float = 0.0,
    logits_max: torch.Tensor | None = None,
    sum_exp_logits: torch.Tensor | None = None,
    softmax: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for input and weight, from the softmax, or from what makes it anew."""
    refuse("npu_fused_linear_cross_entropy_loss_with_max_sum_backward", label_smoothing=label_smoothing)
    if softmax is None:
        if logits_max is None or sum_exp_logits is None:
            raise RuntimeError("without softmax, logits_max and sum_exp_logits are needed")
        logits = (wide(input) @ wide(weight).T).to(input.dtype)
        softmax = (wide(logits) - logits_max[:, None]).exp() / sum_exp_logits[:, None]
    is_own = ~unpacked_bits(target_mask, highest_first=True)[: len(masked_target)]
    one_hot = torch.zeros_like(softmax).scatter_(
        1, masked_target.long()[:, None], is_own[:, None].to(softmax.dtype)
    )
    by_logit = (softmax - one_hot) * wide(grad)[:, None]
    return (by_logit @ wide(weight)).to(input.dtype), (by_logit.T @ wide(input)).to(weight.dtype)
