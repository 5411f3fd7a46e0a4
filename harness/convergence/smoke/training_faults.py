"""Training faults: realistic bugs that are injected into a run, to prove that a check detects them.

The header of a run names its fault, so the run cannot be mistaken for a clean one. In-cell module.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.convergence.smoke.smoke_recipe import TinyRecipe
from harness.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingFault:
    """The difference between a faulty run and a clean one; the defaults are those of a clean run.

    advantage_sign, loss_scale, reward_offset: factors and an offset on advantages, loss and reward.
    constant_reward: replaces every reward. advantage_shift: number of rows by which advantages are shifted.
    mask: "right", "zero" or "full" (padding counts). aggregation, swap_clip, no_clip, algorithm: another
    objective. loss_dtype: dtype of the loss computation. on_policy_ratio: old log-probabilities are computed
    again before each update, so the ratio is always 1. stale_steps: age of the weights that generate the
    samples. temperature: of the sampler; the trainer uses 1. greedy: sample without noise.
    learning_rate_scale: factor on the learning rate from step learning_rate_from on. nan_at: step whose loss
    is NaN. group_shift: number of rows by which the groups of responses are shifted. logit_noise: relative
    error of every logit.
    """

    advantage_sign: float = 1.0
    advantage_shift: int = 0
    loss_scale: float = 1.0
    reward_offset: float = 0.0
    constant_reward: float | None = None
    mask: str = "right"
    aggregation: str | None = None
    swap_clip: bool = False
    no_clip: bool = False
    loss_dtype: str = "float32"
    on_policy_ratio: bool = False
    stale_steps: int = 0
    temperature: float = 1.0
    greedy: bool = False
    learning_rate_scale: float = 1.0
    learning_rate_from: int = 0
    nan_at: int | None = None
    group_shift: int = 0
    algorithm: str | None = None
    logit_noise: float = 0.0

    def changed(self, recipe: TinyRecipe) -> TinyRecipe:
        """The recipe with the changes of this fault."""
        values: dict[str, object] = {}
        if self.swap_clip:
            values.update(clip_ratio_low=recipe.clip_ratio_high, clip_ratio_high=recipe.clip_ratio_low)
        if self.no_clip:
            values.update(clip_ratio_low=0.999, clip_ratio_high=1e6)
        if self.aggregation:
            values.update(loss_agg_mode=self.aggregation)
        if self.algorithm:
            values.update(algorithm=self.algorithm)
        return dataclasses.replace(recipe, **values)  # type: ignore[arg-type]

    def learning_rate(self, recipe: TinyRecipe, step: int) -> float:
        """Adam's step size at `step`."""
        return recipe.learning_rate * (self.learning_rate_scale if step >= self.learning_rate_from else 1.0)

    def mask_of(self, mask: Tensor) -> Tensor:
        """The mask that is passed to the loss."""
        if self.mask == "zero":
            return mask * 0
        return mask * 0 + 1 if self.mask == "full" else mask


CLEAN = TrainingFault()

FAULTS: dict[str, TrainingFault] = {
    "flip-advantage": TrainingFault(advantage_sign=-1.0),
    "shift-advantage": TrainingFault(advantage_shift=1),
    "shift-groups": TrainingFault(group_shift=3),
    "zero-mask": TrainingFault(mask="zero"),
    "full-mask": TrainingFault(mask="full"),
    "stale-policy": TrainingFault(stale_steps=4),
    "stale-policy-1": TrainingFault(stale_steps=1),
    "hot-rollout": TrainingFault(temperature=1.4),
    "cold-rollout": TrainingFault(temperature=0.7),
    "greedy-rollout": TrainingFault(greedy=True),
    "double-loss": TrainingFault(loss_scale=2.0),
    "half-loss": TrainingFault(loss_scale=0.5),
    "token-mean": TrainingFault(aggregation="token-mean"),
    "sequence-mean": TrainingFault(aggregation="seq-mean-token-mean"),
    "token-sum": TrainingFault(aggregation="seq-mean-token-sum"),
    "swap-clip": TrainingFault(swap_clip=True),
    "no-clip": TrainingFault(no_clip=True),
    "bf16-loss": TrainingFault(loss_dtype="bfloat16"),
    "on-policy-ratio": TrainingFault(on_policy_ratio=True),
    "slow-learning": TrainingFault(learning_rate_scale=0.3),
    "no-learning": TrainingFault(learning_rate_scale=0.0),
    "late-explosion": TrainingFault(learning_rate_scale=25.0, learning_rate_from=35),
    "nan-loss": TrainingFault(nan_at=20),
    "stuck-reward": TrainingFault(constant_reward=-1.0),
    "reward-offset": TrainingFault(reward_offset=0.08),
    "wrong-algorithm-grpo": TrainingFault(algorithm="grpo"),
    "wrong-algorithm-gspo": TrainingFault(algorithm="gspo"),
}

# Not bugs: logits with the rounding error of another format. A decision rule that fails these is too strict
# for devices whose matmuls use that format (fp32 with another order of summation, HF32, bfloat16).
ARITHMETIC: dict[str, TrainingFault] = {
    "arithmetic-fp32": TrainingFault(logit_noise=2.0**-22),
    "arithmetic-hf32": TrainingFault(logit_noise=2.0**-11),
    "arithmetic-bf16": TrainingFault(logit_noise=2.0**-9),
}


def fault(name: str | None) -> TrainingFault:
    """The fault called `name`; None is a clean run. Raises InputError for an unknown name."""
    if name is None:
        return CLEAN
    known = {**FAULTS, **ARITHMETIC}
    if name not in known:
        raise InputError(f"unknown fault {name!r}", fix=f"choose one of: {', '.join(known)}")
    return known[name]
