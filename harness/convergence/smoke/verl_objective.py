"""verl's advantage, log-probabilities and policy losses, with one interface for verl 0.5.0 to 0.9.1.

In-cell module; verl is imported on use.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.convergence.smoke import repeat_task
from harness.convergence.smoke.smoke_recipe import TinyRecipe
from harness.errors import InfrastructureError, NothingSelectedError
from harness.numerics.loss.verl_configuration import verl_configuration

_LOSS_NAMES = {"grpo": "vanilla", "gspo": "gspo"}


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """A policy loss with verl's metrics: share of clipped tokens, mean of old - new log-probability."""

    loss: Tensor
    clip_fraction: float
    ppo_kl: float


class Objective:
    """The functions of the installed verl for training with `recipe`."""

    def __init__(self, recipe: TinyRecipe) -> None:
        try:
            from verl.trainer.ppo import core_algos
            from verl.utils import torch_functional
        except ImportError as error:
            raise InfrastructureError(
                f"verl cannot be imported: {error}", fix="look at the check `environment` of this cell first"
            ) from error
        self.verl_version = version("verl")
        self._algorithms: Any = core_algos
        self._functional: Any = torch_functional
        self._recipe = recipe
        self._config = _actor_config(recipe)
        registry = getattr(core_algos, "POLICY_LOSS_REGISTRY", {})
        self._loss_name = _LOSS_NAMES[recipe.algorithm]
        self._registered = self._loss_name in registry
        if not self._registered and recipe.algorithm == "gspo":
            raise NothingSelectedError(
                f"verl {self.verl_version} has no GSPO loss",
                why="verl has it since 0.6.0",
                fix="omit this check for the cell, or use verl 0.6.0 or later",
            )

    def response_mask(self, tokens: Tensor) -> Tensor:
        """The mask (rows, RESPONSE_LENGTH) in float32: 1 up to and including the end token, then 0."""
        mask: Tensor = self._functional.get_response_mask(
            tokens, eos_token=repeat_task.END, dtype=torch.int64
        )
        return mask.to(torch.float32)

    def advantages(self, rewards: np.ndarray, mask: Tensor, group: np.ndarray) -> Tensor:
        """verl's GRPO outcome advantage (rows, RESPONSE_LENGTH), on the CPU as in verl's trainer process."""
        token_level = torch.zeros_like(mask)
        last = mask.sum(dim=1).long() - 1
        token_level[torch.arange(len(rewards)), last] = torch.tensor(rewards, dtype=torch.float32)
        index = np.array([str(number) for number in group], dtype=object)
        advantages, _ = self._algorithms.compute_grpo_outcome_advantage(
            token_level_rewards=token_level, response_mask=mask, index=index
        )
        result: Tensor = advantages
        return result

    def log_probs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """verl's `logprobs_from_logits` (rows, RESPONSE_LENGTH).

        verl uses npu_cross_entropy_loss where torch_npu has it. All rows are passed as one, because verl's
        implementation for the CPU loops over the first dimension.
        """
        rows, length = tokens.shape
        flat: Tensor = self._functional.logprobs_from_logits(
            logits.reshape(1, rows * length, -1), tokens.reshape(1, -1), inplace_backward=False
        )
        return flat.reshape(rows, length)

    def entropy(self, logits: Tensor) -> Tensor:
        """verl's `entropy_from_logits` (rows, RESPONSE_LENGTH), in nats."""
        entropy: Tensor = self._functional.entropy_from_logits(logits)
        return entropy

    def policy_loss(self, *, old: Tensor, new: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        """verl's policy loss for the recipe. All inputs are (rows, RESPONSE_LENGTH)."""
        inputs: dict[str, Any] = {
            "old_log_prob": old,
            "log_prob": new,
            "advantages": advantages,
            "response_mask": mask,
            "loss_agg_mode": self._recipe.loss_agg_mode,
        }
        if self._registered:
            function = self._algorithms.get_policy_loss_fn(self._loss_name)
            out = function(**inputs, config=self._config)
        else:  # 0.5.0 keeps the vanilla loss outside its registry
            out = self._algorithms.compute_policy_loss(
                **inputs,
                cliprange=self._recipe.clip_ratio_low,
                cliprange_low=self._recipe.clip_ratio_low,
                cliprange_high=self._recipe.clip_ratio_high,
                clip_ratio_c=self._recipe.clip_ratio_c,
            )
        if isinstance(out[1], dict):  # from 0.6.1 on: (loss, metrics)
            clip, kl = out[1]["actor/pg_clipfrac"], out[1]["actor/ppo_kl"]
        else:  # up to 0.6.0: (loss, clip fraction, kl, lower clip fraction)
            clip, kl = out[1], out[2]
        return PolicyLoss(loss=out[0], clip_fraction=float(clip), ppo_kl=float(kl))


def _actor_config(recipe: TinyRecipe) -> Any:
    values: dict[str, Any] = {
        "strategy": "fsdp",
        "rollout_n": recipe.samples,
        "clip_ratio": recipe.clip_ratio_low,
        "clip_ratio_low": recipe.clip_ratio_low,
        "clip_ratio_high": recipe.clip_ratio_high,
        "clip_ratio_c": recipe.clip_ratio_c,
        "loss_agg_mode": recipe.loss_agg_mode,
        "ppo_mini_batch_size": recipe.rows // recipe.mini_batches,
        "ppo_micro_batch_size_per_gpu": recipe.rows // recipe.mini_batches,
        "use_dynamic_bsz": False,
    }
    try:
        from verl.workers.config import ActorConfig, PolicyLossConfig  # noqa: F401
    except ImportError:  # 0.5.0 expects an omegaconf object
        from omegaconf import OmegaConf

        return OmegaConf.create({**values, "policy_loss": {"loss_mode": _LOSS_NAMES[recipe.algorithm]}})
    loss = PolicyLossConfig(loss_mode=_LOSS_NAMES[recipe.algorithm])
    return verl_configuration("ActorConfig", {**values, "policy_loss": loss})
