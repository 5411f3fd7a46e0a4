"""The case of one actor update: a small model, a batch and the settings, drawn from a seed and exact in
fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

DEFAULT_SEED = 20250718


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Arguments of transformers' Qwen2Config: two layers with grouped keys, biases, RMSNorm, SwiGLU and
    rotary positions."""

    vocab_size: int = 97
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 64
    pad_token_id: int = 0
    tie_word_embeddings: bool = False


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """Settings of verl's actor, by verl's names, and the learning rate `lr`.

    The defaults give two optimizer steps of two micro-batches each, off-policy, with every term of the loss.
    """

    ppo_mini_batch_size: int = 4
    ppo_micro_batch_size_per_gpu: int = 2
    clip_ratio: float = 0.2
    # Wide, so that no ratio is within rounding errors of a bound, also after the first step
    # (`clip_decisions`).
    clip_ratio_low: float = 0.7
    clip_ratio_high: float = 1.7
    # verl gets no clip_ratio_low and clip_ratio_high, so that it uses clip_ratio.
    symmetric_clip: bool = False
    loss_agg_mode: str = "token-mean"
    # Of seq-mean-token-sum-norm in engine workers; None for the horizon.
    loss_scale_factor: int | None = None
    loss_mode: str = "vanilla"
    entropy_coeff: float = 0.01
    use_kl_loss: bool = True
    kl_loss_coef: float = 0.05
    kl_loss_type: str = "low_var_kl"
    # Far above the norms that occur: gradient clipping would hide an error that scales all gradients.
    grad_clip: float = 1e4
    lr: float = 5e-4
    temperature: float = 1.0

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far ratios may be below and above 1."""
        if self.symmetric_clip:
            return self.clip_ratio, self.clip_ratio
        return self.clip_ratio_low, self.clip_ratio_high


BATCH, PROMPT, RESPONSE = 8, 6, 10

DRIFTS = (-2.4, -0.1, 0.05, 0.12, 2.2)
"""Log-ratios between old and new policy: inside the clip range, and outside on both sides."""

GAIN: Mapping[str, float] = {"float32": 1.5, "bfloat16": 1.0}
"""The factor by which matrices enlarge activations. Rounding errors grow with it."""


@dataclass(frozen=True, kw_only=True)
class ActorCase:
    """Model, batch and settings of one update. `draw` derives weights from the names and shapes of the
    parameters.

    packed: rows without padding in one sequence and fused attention, as in production, instead of padded rows
        and attention as separate operators. Both compute the same function.
    compute: torch's name of the format in which the model computes under verl's autocast. Parameters,
        optimizer and loss stay in fp32.
    """

    seed: int = DEFAULT_SEED
    model: ModelShape = ModelShape()
    update: UpdateSettings = UpdateSettings()
    packed: bool = False
    compute: str = "float32"

    @property
    def dp_size(self) -> int:
        """One process trains."""
        return 1

    @property
    def max_tokens(self) -> int:
        """Micro-batches have a fixed number of rows."""
        return 0

    @property
    def sp_size(self) -> int:
        """Each row is on one rank."""
        return 1

    @property
    def epochs(self) -> int:
        """Passes over the rows."""
        return 1

    @property
    def attention(self) -> str:
        """The name of the attention implementation in transformers."""
        return "flash_attention_2" if self.packed else "eager"

    def draw(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A parameter: matrices that lead to peaked distributions, norms near one, biases that are not
        zero."""
        rng = np.random.default_rng([self.seed, *name.encode()])
        noise = rng.normal(size=shape)
        if len(shape) > 1:
            return np.asarray(noise * (GAIN[self.compute] / np.sqrt(shape[-1])), dtype=np.float32)
        return np.asarray((1.0 if "norm" in name else 0.0) + 0.1 * noise, dtype=np.float32)

    def tokens(self) -> Arrays:
        """input_ids, attention_mask, position_ids (batch, prompt + response), with padding on the left and
        right."""
        rng = np.random.default_rng([self.seed, 1])
        ids = rng.integers(1, self.model.vocab_size, (BATCH, PROMPT + RESPONSE))
        mask = np.ones_like(ids)
        for row in range(BATCH):
            mask[row, : row % 4] = 0
            mask[row, PROMPT + RESPONSE - (row * 3) % 8 :] = 0
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
        return {"input_ids": ids * mask, "attention_mask": mask, "position_ids": positions}

    def targets(self, log_probs: NDArray[np.float64]) -> Arrays:
        """old_log_probs, ref_log_prob, advantages (batch, response) near the log-probabilities of the
        model."""
        rng = np.random.default_rng([self.seed, 2])
        shape = log_probs.shape
        advantages = rng.normal(size=(shape[0], 1)) * np.ones(shape)
        return {
            "old_log_probs": (log_probs - rng.choice(DRIFTS, shape)).astype(np.float32),
            "ref_log_prob": (log_probs + rng.normal(0.0, 0.2, shape)).astype(np.float32),
            "advantages": advantages.astype(np.float32),
        }
