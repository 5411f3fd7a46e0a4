"""Legal torch evaluations of policy losses: the same objective by autograd, in several ways of writing it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from harness.numerics.loss.candidate import CandidateResult, UnsupportedCaseError
from harness.numerics.loss.cases.loss_case import LossCase

IO = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VARIANTS = ("eager", "where", "trl", "micro-batches", "exp2")


class TorchCandidate:
    """Policy losses by autograd on `device`, written in one of the `VARIANTS`, perhaps by TorchInductor."""

    def __init__(self, variant: str, *, device: str = "cpu", compiled: bool = False) -> None:
        self.variant = variant
        self.device = device
        self.loss = torch.compile(self._loss, dynamic=False) if compiled else self._loss

    def __call__(self, case: LossCase) -> CandidateResult:
        """Value and gradient; only finite padding and policy losses are offered."""
        if case.operation != "policy" or case.severity != "required":
            raise UnsupportedCaseError("policy losses only")
        rows = case.settings["loss_mode"] == "gspo" and self.variant == "trl"
        if rows and ("rollout_is_weights" in case.inputs or "gspo-token" in case.name):
            raise UnsupportedCaseError("one ratio per sequence needs one advantage and weight per sequence")
        tensors = {
            name: torch.from_numpy(np.array(array)).to(IO[case.contract.io]).to(self.device)
            for name, array in case.inputs.items()
        }
        leaf = tensors["log_prob"].requires_grad_()
        computed = {name: tensor.float() for name, tensor in tensors.items()}
        loss = self.loss(computed, dict(case.settings))
        loss.backward()
        return CandidateResult(
            value=loss.detach().cpu().double().numpy(), gradient=leaf.grad.cpu().double().numpy()
        )

    def _loss(self, tensors: dict[str, Any], settings: dict[str, Any]) -> Any:
        mask = tensors["response_mask"]
        if self.variant != "micro-batches":
            return self._part(tensors, settings, _denominator(mask, settings))
        denominator = _denominator(mask, settings)
        parts = []
        for rows in torch.arange(mask.shape[0]).chunk(4):
            first, last = int(rows[0]), int(rows[-1]) + 1
            part = {name: tensor[first:last] for name, tensor in tensors.items()}
            share = denominator[first:last] if denominator.shape[0] > 1 else denominator
            parts.append(self._part(part, settings, share))
        return torch.stack(parts).sum()

    def _part(self, tensors: dict[str, Any], settings: dict[str, Any], denominator: Any) -> Any:
        mask, advantages = tensors["response_mask"], tensors["advantages"]
        log_ratio = tensors["log_prob"] - tensors["old_log_prob"]
        ratio = self._ratio(log_ratio, tensors["log_prob"], mask, settings)
        low, high = 1 - settings["clip_ratio_low"], 1 + settings["clip_ratio_high"]
        losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
        if settings["loss_mode"] == "vanilla":
            bounded = torch.minimum(-advantages * settings["clip_ratio_c"], losses)
            losses = torch.where(advantages < 0, bounded, losses)
        if "rollout_is_weights" in tensors:
            losses = losses * tensors["rollout_is_weights"]
        if self.variant == "where":
            losses = torch.where(mask.bool(), losses, 0.0)
        factor = settings.get("dp_size", 1) * settings.get("scale", 1.0)
        return (losses * mask / denominator).sum() * factor

    def _ratio(self, log_ratio: Any, log_prob: Any, mask: Any, settings: dict[str, Any]) -> Any:
        if settings["loss_mode"] == "vanilla":
            return self._exp(log_ratio.clamp(-20, 20))
        mean = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        if self.variant == "trl":
            return self._exp(mean.clamp(max=10)).expand_as(mask)
        return self._exp((log_prob - log_prob.detach() + mean.detach()).clamp(max=10))

    def _exp(self, exponent: Any) -> Any:
        return torch.exp2(exponent * 1.4426950408889634) if self.variant == "exp2" else torch.exp(exponent)


def _denominator(mask: Any, settings: dict[str, Any]) -> Any:
    """Shape (batch, 1) or (1, 1)."""
    mode = settings["loss_agg_mode"]
    one = torch.ones(1, 1, device=mask.device)
    if mode == "token-sum":
        return one
    if mode == "token-mean":
        return one * settings.get("batch_num_tokens", mask.sum())
    lengths = mask.sum(-1, keepdim=True)
    sequences = settings.get("global_batch_size", (lengths > 0).sum())
    if mode == "seq-mean-token-mean":
        return lengths.clamp(min=1) * sequences
    horizon = settings.get("loss_scale_factor", mask.shape[-1]) if mode.endswith("norm") else 1
    return one * sequences * horizon
