"""The case of the twin run: ten small reinforcement learning steps. All random numbers are drawn on the
host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import PROMPT, RESPONSE, ActorCase, Arrays, ModelShape, UpdateSettings
from harness.numerics.arithmetic.precision_contract import (
    BF16_APPROXIMATE,
    FP16_NATIVE,
    FP32,
    Contract,
    round_to,
)

STEPS = 10
GROUPS, GROUP = 2, 4
HOST = "host"

CONTRACTS: Mapping[str, Contract] = {"float32": FP32, "bfloat16": BF16_APPROXIMATE, "float16": FP16_NATIVE}

MODEL = ModelShape(hidden_size=32, vocab_size=48)
UPDATE = UpdateSettings(
    ppo_mini_batch_size=4,
    ppo_micro_batch_size_per_gpu=4,
    clip_ratio=0.06,
    clip_ratio_low=0.06,
    clip_ratio_high=0.08,
    use_kl_loss=False,
    # verl's default; it is not used.
    kl_loss_coef=0.001,
    lr=1e-3,
)
"""Two optimizer steps per batch. The second is off-policy, and the clip range is so narrow that tokens are
clipped."""

EPSILON = 1e-4
"""Adam's epsilon. With the default of 1e-8, a gradient that consists only of rounding errors (that of a key's
bias, which softmax cancels) would move its parameter by a whole learning rate in a random direction."""

STOP = 1
"""The token that ends a response."""


@dataclass(frozen=True, kw_only=True)
class TwinCase(ActorCase):
    """An `ActorCase` for which the policy samples the responses, step after step.

    sampling: `host`, or the name of another sampler of tokens. dtype: torch's name of the compute format.
    """

    model: ModelShape = MODEL
    update: UpdateSettings = UPDATE
    steps: int = STEPS
    dtype: str = "float32"
    sampling: str = HOST

    @property
    def contract(self) -> Contract:
        """The precision contract of the device's arithmetic."""
        return CONTRACTS[self.dtype]

    def draw(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """As for one update, but with matrices that preserve the size of activations: rounding errors grow
        less, and ten steps stay within the horizon."""
        drawn = super().draw(name, shape)
        # Rounded for both runs: a value that a 16-bit format cannot represent is not a rounding error of the
        # device.
        return round_to(drawn / 1.5 if len(shape) > 1 else drawn, self.contract.io).astype(np.float32)

    def prompts(self, step: int) -> NDArray[np.int64]:
        """(rows, PROMPT) tokens; the rows of one group have the same prompt."""
        rng = np.random.default_rng([self.seed, 10, step])
        drawn = rng.integers(2, self.model.vocab_size, (GROUPS, PROMPT))
        return np.repeat(drawn, GROUP, axis=0)

    def noise(self, step: int) -> NDArray[np.float64]:
        """Gumbel noise (rows, RESPONSE, vocabulary): the index of the largest sum of logit and noise is a
        sample of the softmax (Gumbel 1954; Maddison, Tarlow and Minka 2014)."""
        rng = np.random.default_rng([self.seed, 11, step])
        return rng.gumbel(size=(GROUPS * GROUP, RESPONSE, self.model.vocab_size))

    def batch(self, prompts: NDArray[Any], responses: NDArray[Any]) -> Arrays:
        """The inputs of verl's actor: ids, mask and positions, (rows, PROMPT + RESPONSE)."""
        ids = np.concatenate([prompts, responses], axis=1)
        is_valid = np.cumsum(responses == STOP, axis=1) - (responses == STOP) == 0
        mask = np.concatenate([np.ones_like(prompts), is_valid.astype(np.int64)], axis=1)
        positions = np.arange(ids.shape[1])[None] + np.zeros_like(ids)
        return {"input_ids": ids * mask, "attention_mask": mask, "position_ids": positions}

    def advantages(self, tokens: Arrays) -> NDArray[np.float32]:
        """GRPO's advantages for a simple reward: the share of positions with an even token.

        Computed on the host in float64. The check `loss` judges verl's advantages. Here, rewards that are
        equal up to a rounding error would give a random sign.
        """
        mask = tokens["attention_mask"][:, PROMPT:]
        rewards = (mask * (tokens["input_ids"][:, PROMPT:] % 2 == 0)).sum(axis=1) / RESPONSE
        grouped = rewards.reshape(-1, GROUP)
        centred = grouped - grouped.mean(axis=1, keepdims=True)
        equal = (grouped == grouped[:, :1]).all(axis=1, keepdims=True)
        normalised = np.where(equal, 0.0, centred / (grouped.std(axis=1, ddof=1, keepdims=True) + 1e-6))
        return np.asarray(normalised.reshape(-1, 1) * mask, dtype=np.float32)


def cannot_compare_reason(case: TwinCase) -> str:
    """Why the two runs cannot be compared with these settings, whatever they compute; "" if they can.

    Limits that depend on the numbers, such as a learning rate that lets rounding errors grow too fast, show
    in the horizon (`twin_program.horizon`).
    """
    if case.sampling != HOST:
        return (
            f"tokens are sampled by {case.sampling}, whose random numbers cannot be drawn again on the CPU, "
            "so the runs differ from the first token on"
        )
    if case.contract is not FP32:
        # The zone of `policy_loss`: a ratio within three unit roundoffs of a bound may be on either side of
        # it.
        zone = 3 * case.contract.unit
        narrow = min(case.update.clip_ratio_low, case.update.clip_ratio_high)
        if narrow <= zone:
            return (
                f"the clip range of {narrow:g} is not above the {zone:.2g} within which {case.dtype} decides "
                "by rounding on which side of a clip bound a ratio near 1 is"
            )
    return ""
