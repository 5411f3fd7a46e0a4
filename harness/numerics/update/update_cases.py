"""The cases of the check `update`: recipes, and the tiny model, tokens, masks and rewards of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import PROMPT, RESPONSE, UpdateSettings

ROWS, GROUP = 8, 4
VOCABULARY, HIDDEN = 29, 12
POSITIONS = PROMPT + RESPONSE
PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "embedding": (VOCABULARY, HIDDEN),
    "position": (POSITIONS, HIDDEN),
    "head": (VOCABULARY, HIDDEN),
}
"""The model: logits = (embedding[token] + position[position id]) @ head.T. It can be differentiated by hand,
and it reads token ids and position ids, so that wrong ones are visible."""

WEIGHT_DECAY, BETAS, EPSILON = 0.01, (0.9, 0.999), 1e-8
"""Of AdamW, as torch's defaults."""

OTHER_MICRO_BATCHES = 3
"""Into so many micro-batches another data-parallel rank splits each dynamic mini-batch."""

KL_TARGET, KL_HORIZON = 1.1, 4 * ROWS
"""Settings of the adaptive KL controller: the measured KL divided by the target, and the horizon."""

KL_RATIOS = (0.5, 0.9, 1.1, 1.5)
"""Measured KL divided by the target: between the limits of the change of one step, and beyond both."""

WEIGHT_LIMIT = 1.7
"""The limit of truncated rollout importance weights; not 2, which is verl's default."""

INFERENCE_TOKENS = 60
"""The largest number of tokens of a dynamic micro-batch in a pass without gradients: twice as many as with
gradients, so that a micro-batch of one kind is too long for the other, or two fit into one."""

DRIFTS = (-2.4, -0.3, -0.1, 0.05, 0.12, 0.5, 2.2)
"""Log-ratios between old and new policy: inside and outside of the clip ranges, also of the dual clip."""

SETTINGS = UpdateSettings(clip_ratio=0.5, clip_ratio_low=0.2, clip_ratio_high=0.28, lr=5e-3)
NO_EXTRAS = replace(SETTINGS, entropy_coeff=0.0, use_kl_loss=False)


@dataclass(frozen=True, kw_only=True)
class UpdateCase:
    """One update. packed: rows without padding. norm_adv_by_std: False for Dr.GRPO. kl_in_reward:
    coefficient of the KL penalty in the rewards, with a controller that adapts it. reward_kl: its estimator,
    "kl" for k1, or "abs". turns:
    some response tokens are masked, as tool outputs. weights: the trainer computes rollout importance
    weights. rejection: the trainer also rejects tokens with each option of this release; the update has them
    all. autocast: the worker also computes log-probabilities in bf16, of which only the autocast is judged.
    max_tokens: a micro-batch has as many rows as fit into that many tokens; 0 for a fixed number
    of rows. dp_size: number of data-parallel ranks, of which this process is one; the others have
    `other_tokens` valid tokens and split dynamic batches into at least `OTHER_MICRO_BATCHES`. epochs:
    passes over the rows. nested: the worker gets nested tensors, as from the trainer with a transfer queue,
    if this release has it. sp_size: number of ranks among which the tokens of packed rows are divided
    (Ulysses). sessions: some rows are earlier outputs of the session of another row, if this release knows
    sessions.
    """

    name: str
    update: UpdateSettings
    packed: bool = False
    norm_adv_by_std: bool = True
    kl_in_reward: float = 0.0
    reward_kl: str = "kl"
    turns: bool = False
    weights: bool = False
    rejection: bool = False
    autocast: bool = False
    max_tokens: int = 0
    dp_size: int = 1
    epochs: int = 1
    nested: bool = False
    sp_size: int = 1
    sessions: bool = False
    seed: int = 20250718
    compute: str = "float32"

    @property
    def mini_batches(self) -> int:
        """Number of mini-batches of an epoch."""
        return ROWS // self.update.ppo_mini_batch_size

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return self.mini_batches * self.epochs

    @property
    def inference_rows(self) -> int:
        """The rows of a micro-batch in a pass without gradients: other ones than with gradients, which have
        another setting."""
        return 2 if self.update.ppo_micro_batch_size_per_gpu == 4 else 4

    @property
    def has_reference_policy(self) -> bool:
        """Whether the trainer computes log-probabilities of a reference policy."""
        return self.update.use_kl_loss or bool(self.kl_in_reward)

    @property
    def last_outputs(self) -> NDArray[np.int64]:
        """The row with the last output of the session of each row. With sessions, two neighbouring rows are
        one; in every other session the first of them is the last output."""
        rows = np.arange(ROWS)
        return rows // 2 * 2 + rows // 2 % 2 if self.sessions else rows

    @property
    def batch_keys(self) -> list[str]:
        """Prompt, session and number of the output in its session, of each row. Names of prompts may have the
        separator."""
        return [
            f"prompt_{row // GROUP}_{last}_{int(row == last)}"
            for row, last in enumerate(self.last_outputs.tolist())
        ]

    @property
    def on_policy(self) -> bool:
        """Whether a legacy worker takes the new log-probabilities as the old ones."""
        return self.steps == 1

    @property
    def most_tokens(self) -> int:
        """How many tokens a dynamic micro-batch may have on all its ranks."""
        return self.max_tokens * self.sp_size

    @property
    def other_tokens(self) -> int:
        """Valid tokens of the other ranks in each mini-batch."""
        return 23 * (self.dp_size - 1)


CASES = (
    UpdateCase(name="grpo", update=SETTINGS),
    UpdateCase(
        name="gspo",
        update=replace(
            NO_EXTRAS, loss_mode="gspo", loss_agg_mode="seq-mean-token-mean", temperature=0.7, grad_clip=0.05
        ),
        packed=True,
        nested=True,
    ),
    UpdateCase(
        name="dapo",
        update=replace(NO_EXTRAS, temperature=1.3, grad_clip=0.5),
        packed=True,
        weights=True,
        rejection=True,
        dp_size=2,
    ),
    UpdateCase(
        name="dr-grpo",
        update=replace(
            SETTINGS,
            loss_agg_mode="seq-mean-token-sum-norm",
            temperature=0.8,
            use_kl_loss=False,
            loss_scale_factor=7,
        ),
        norm_adv_by_std=False,
        kl_in_reward=0.1,
    ),
    UpdateCase(
        name="turns",
        update=replace(
            SETTINGS,
            loss_agg_mode="seq-mean-token-sum",
            kl_loss_type="mse",
            ppo_micro_batch_size_per_gpu=4,
            symmetric_clip=True,
        ),
        turns=True,
        packed=True,
        epochs=2,
    ),
    UpdateCase(
        name="sessions",
        update=replace(SETTINGS, temperature=0.9, kl_loss_type="abs"),
        kl_in_reward=0.1,
        reward_kl="abs",
        turns=True,
        nested=True,
        sessions=True,
    ),
    UpdateCase(
        name="dynamic",
        update=replace(
            SETTINGS,
            loss_agg_mode="seq-mean-token-mean",
            ppo_mini_batch_size=ROWS,
            ppo_micro_batch_size_per_gpu=1,
        ),
        max_tokens=28,
        epochs=2,
    ),
    UpdateCase(
        name="dynamic-packed",
        update=replace(NO_EXTRAS, ppo_micro_batch_size_per_gpu=1),
        max_tokens=30,
        packed=True,
        norm_adv_by_std=False,
        weights=True,
        dp_size=2,
        nested=True,
    ),
    UpdateCase(
        name="ulysses",
        update=replace(SETTINGS, ppo_micro_batch_size_per_gpu=1, temperature=0.85),
        max_tokens=8,
        packed=True,
        nested=True,
        sp_size=4,
    ),
    UpdateCase(
        name="on-policy",
        update=replace(NO_EXTRAS, ppo_mini_batch_size=ROWS, entropy_coeff=0.02, temperature=1.1),
        autocast=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class UpdateInputs:
    """The inputs of one case. Shapes: tokens (rows, prompt + response), responses (rows, response), rewards
    and index (rows,). Floating-point values are exact in fp32."""

    parameters: Mapping[str, NDArray[np.float64]]
    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    response_mask: NDArray[np.int64]
    rewards: NDArray[np.float64]
    index: NDArray[np.int64]
    old_log_probs: NDArray[np.float64]
    ref_log_prob: NDArray[np.float64]
    rollout_log_probs: NDArray[np.float64]
    rollout_is_weights: NDArray[np.float64]

    @property
    def attended(self) -> NDArray[np.bool_]:
        """Which response tokens exist, (rows, response)."""
        return np.asarray(self.attention_mask[:, PROMPT:] != 0)


def draw(case: UpdateCase) -> UpdateInputs:
    """The inputs of a case; they depend on nothing but its name, settings and seed."""
    rng = np.random.default_rng([case.seed, *case.name.encode()])
    parameters = {name: _single(rng.normal(size=shape)) for name, shape in PARAMETERS.items()}
    mask = np.ones((ROWS, POSITIONS), dtype=np.int64)
    # Ranks that divide tokens get a micro-batch that needs no padding, whichever rows are joined. A trainer
    # with nested tensors has no row without a response.
    second, fourth = 4 if case.sp_size > 1 else 1, 3 if case.nested else 0
    for row, length in enumerate((10, second, 7, fourth, 4, 9, 2, 10)):
        mask[row, : (row * 2) % 5] = 0
        mask[row, PROMPT + length :] = 0
    input_ids = rng.integers(1, VOCABULARY, mask.shape) * mask
    responses = mask[:, PROMPT:]
    if case.turns:
        responses = responses * (rng.random(responses.shape) > 0.3)
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    log_probs = exact_log_probs(parameters, input_ids, positions, case.update.temperature)
    sequence = case.update.loss_mode == "gspo"
    drift = rng.choice(DRIFTS, (ROWS, 1) if sequence else log_probs.shape)
    rewards = _single(rng.permutation([0.0, 1.0, 0.25, 1.0, 0.0, 0.5, 1.0, 0.0]))
    old_log_probs = _single(log_probs - drift - 0.01 * rng.normal(size=log_probs.shape))
    ref_log_prob = _single(log_probs + rng.normal(0.0, 0.3, log_probs.shape))
    weights = np.minimum(np.exp(rng.normal(0.0, 0.4, log_probs.shape)), WEIGHT_LIMIT)
    return UpdateInputs(
        parameters=parameters,
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions,
        response_mask=responses.astype(np.int64),
        rewards=rewards,
        index=np.repeat(np.arange(ROWS // GROUP), GROUP),
        old_log_probs=old_log_probs,
        ref_log_prob=ref_log_prob,
        rollout_log_probs=_single(old_log_probs - rng.normal(0.0, 0.6, log_probs.shape)),
        rollout_is_weights=_single(weights),
    )


def kl_target(case: UpdateCase, inputs: UpdateInputs) -> float:
    """The target of the adaptive KL controller, so that it adds about a tenth times rows / horizon."""
    return measured_kl(case, inputs) / KL_TARGET


def measured_kl(case: UpdateCase, inputs: UpdateInputs) -> float:
    """The KL by the estimator of the case: the mean of each response, and the mean of these."""
    mask, distances = inputs.response_mask, inputs.old_log_probs - inputs.ref_log_prob
    if case.reward_kl == "abs":
        distances = np.abs(distances)
    return float(((distances * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)).mean())


def exact_log_probs(
    parameters: Mapping[str, NDArray[np.float64]],
    input_ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    temperature: float,
) -> NDArray[np.float64]:
    """Log-probabilities of the responses, (rows, response). The token before a response token predicts it."""
    hidden = parameters["embedding"][input_ids] + parameters["position"][positions]
    logits = hidden @ parameters["head"].T / temperature
    logits = logits[:, PROMPT - 1 : -1]
    largest = logits.max(axis=-1, keepdims=True)
    normaliser = (largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True)))[..., 0]
    chosen = np.take_along_axis(logits, input_ids[:, PROMPT:, None], axis=-1)[..., 0]
    return np.asarray(chosen - normaliser)


def _single(values: Any) -> NDArray[np.float64]:
    return np.asarray(values).astype(np.float32).astype(np.float64)
