"""Intervals of the quantities of one micro-batch and one optimizer step: float64 by their definition.

Each quantity is computed from the recorded values of what it is computed from. If it is wrong, the function
that computes it is wrong, and not something before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import PROMPT, RESPONSE
from harness.numerics.arithmetic.error_bounds import Bounded, maximum
from harness.numerics.arithmetic.precision_contract import FP32, Array
from harness.numerics.loss.cases.loss_case import LossCase, LossSettings
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.formulas.softmax import entropies, log_probs
from harness.numerics.loss.release_objectives import ReleaseObjective
from harness.numerics.loss.verl_losses_source import (
    LOSS_SCALE_FACTOR,
    NESTED,
    ON_POLICY,
    SESSIONS,
    TRAINER_STEPS,
)
from harness.numerics.update.rejection import Weighting
from harness.numerics.update.update_cases import (
    BETAS,
    EPSILON,
    KL_HORIZON,
    KL_RATIOS,
    KL_TARGET,
    PARAMETERS,
    ROWS,
    WEIGHT_DECAY,
    WEIGHT_LIMIT,
    UpdateCase,
    UpdateInputs,
    kl_target,
)

LEGACY = "DataParallelPPOActor"
KL_LIMIT = 0.2
"""The largest relative error that the adaptive KL controller uses (arXiv:1909.08593, section 2.2)."""

TORCH_EPSILON = 1e-6
"""Added to the norm by `torch.nn.utils.clip_grad_norm_`."""

Parameters = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A closed interval for each element; NaN where anything is accepted."""

    exact: Array
    low: Array
    high: Array

    @classmethod
    def around(cls, bounded: Bounded) -> Interval:
        """The interval of a computed value."""
        contract = bounded.contract
        tolerance = contract.safety * (bounded.error + 4 * contract.unit * np.abs(bounded.value))
        return cls.within(bounded.value, tolerance + 4 * contract.underflow)

    @classmethod
    def within(cls, exact: Array, tolerance: Array) -> Interval:
        """The interval of a tolerance around a value."""
        return cls(exact=exact, low=exact - tolerance, high=exact + tolerance)


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The loss of a micro-batch: its terms as verl's functions return them, the loss that is differentiated,
    and its gradients by log-probabilities and entropies (rows, response). policy_gradient: that of the policy
    loss alone, by log-probabilities."""

    policy_loss: Interval
    entropy_loss: Interval | None
    kl_loss: Interval | None
    loss: Interval
    policy_gradient: Bounded
    by_log_prob: Bounded
    by_entropy: Array


@dataclass(frozen=True, kw_only=True)
class UpdateReference:
    """The reference of a case for one worker class and one release."""

    case: UpdateCase
    inputs: UpdateInputs
    path: str
    objective: ReleaseObjective

    def weights(self) -> Interval:
        """Rollout importance weights of tokens, truncated."""
        return self._weights(Weighting(level="token"), self.inputs.response_mask.astype(np.float64))

    def weighted_by(self, option: Weighting) -> Interval:
        """Rollout importance weights with an option, where each response has at least one token."""
        mask = self.inputs.response_mask.astype(np.float64)
        mask[:, 0] = 1
        return self._weights(option, mask)

    def _weights(self, option: Weighting, mask: Array) -> Interval:
        inputs = self.inputs
        arrays = {
            "old_log_prob": inputs.old_log_probs,
            "rollout_log_prob": inputs.rollout_log_probs,
            "response_mask": mask,
        }
        settings: LossSettings = {
            "rollout_is": option.level,
            "upper": WEIGHT_LIMIT,
            "normalised": option.normalised,
        }
        return _value(self._loss_case("weights", arrays, settings))

    @property
    def legacy(self) -> bool:
        """Whether the worker scales micro-batches; the engine uses denominators of the global mini-batch."""
        return self.path == LEGACY

    @property
    def agrees_on_micro_batches(self) -> bool:
        """Whether data-parallel ranks use the same number of dynamic micro-batches: the engine does."""
        return not self.legacy and self.case.dp_size > 1 and bool(self.case.max_tokens)

    def rewards(self) -> Interval:
        """Rewards of tokens: the reward at the last valid token, minus the KL penalty."""
        inputs, mask = self.inputs, self.inputs.response_mask
        scores = np.zeros(mask.shape)
        last = np.maximum(mask.sum(axis=1) - 1, 0)
        scores[np.arange(len(scores)), last] = inputs.rewards
        distance = Bounded.exact(inputs.old_log_probs, FP32) - inputs.ref_log_prob
        if self.case.reward_kl == "abs":
            distance = maximum(distance, -distance)
        penalty = distance * (self.case.kl_in_reward * mask)
        return Interval.around(Bounded.exact(scores, FP32) - penalty)

    def kl_coefficient(self) -> Interval:
        """The coefficient of the KL penalty after the adaptive controller used the measured KL
        (arXiv:1909.08593, section 2.2)."""
        inputs, start = self.inputs, self.case.kl_in_reward
        distances = np.abs(inputs.old_log_probs - inputs.ref_log_prob) * inputs.response_mask
        size = distances.sum(axis=1) / np.maximum(inputs.response_mask.sum(axis=1), 1)
        change = (KL_TARGET - 1) * ROWS / KL_HORIZON
        relative = 64 * FP32.unit * float(size.mean()) / abs(kl_target(self.case, inputs))
        return Interval.within(
            np.float64(start * (1 + change)),  # type: ignore[arg-type]
            np.float64(start * (relative * ROWS / KL_HORIZON + 1e-7)),  # type: ignore[arg-type]
        )

    def kl_controller(self) -> Interval:
        """The coefficient after one step for each of `KL_RATIOS`: the error is limited to 20 %."""
        error = np.clip(np.array(KL_RATIOS) - 1, -KL_LIMIT, KL_LIMIT)
        exact = self.case.kl_in_reward * (1 + error * ROWS / KL_HORIZON)
        return Interval.within(exact, 8 * FP32.unit * exact)

    @property
    def knows_sessions(self) -> bool:
        """Whether this release computes advantages of sessions."""
        return SESSIONS in self.objective.capabilities

    @property
    def nested(self) -> bool:
        """Whether the worker of this release gets nested tensors in this case."""
        return self.case.nested and NESTED in self.objective.capabilities

    def advantages(self, rewards: Array) -> Interval:
        """Advantages from recorded rewards of tokens: those of the last outputs of sessions by their groups,
        and each other output has that of its session."""
        mask = self.inputs.response_mask
        last = self.case.last_outputs if self.knows_sessions else np.arange(ROWS)
        finals = np.unique(last)
        scores, index = rewards.sum(axis=1)[finals], self.inputs.index[finals]
        settings: LossSettings = {"norm_adv_by_std_in_grpo": self.case.norm_adv_by_std}
        expected = self._loss_case(
            "advantage",
            {"rewards": scores, "index": index, "response_mask": np.ones((len(finals), 1))},
            settings,
        )
        # The sum of the rewards of tokens is rounded, and the standard deviation divides its error.
        rounded = FP32.unit * RESPONSE * np.abs(rewards).sum(axis=1).max()
        groups = [scores[index == group] for group in np.unique(index)]
        spread = min(float(group.std(ddof=1)) for group in groups) if self.case.norm_adv_by_std else 1.0
        extra = 8 * rounded / spread if (rewards != 0).sum(axis=1).max() > 1 else 0.0
        # A last output without valid tokens has the advantage 0.
        valid = mask * (mask[last].sum(axis=1, keepdims=True) > 0)
        of_row = np.searchsorted(finals, last)
        return Interval(
            exact=expected.value[of_row] * valid,
            low=(expected.value_low[of_row] - extra) * valid,
            high=(expected.value_high[of_row] + extra) * valid,
        )

    def hidden(self, parameters: Parameters, rows: NDArray[np.int64]) -> Array:
        """The input of the head, (rows, positions, hidden)."""
        tokens, positions = self.inputs.input_ids[rows], self.inputs.position_ids[rows]
        return np.asarray(parameters["embedding"][tokens] + parameters["position"][positions])

    def response_logits(self, parameters: Parameters, rows: NDArray[np.int64]) -> Bounded:
        """Logits that predict the responses, divided by the temperature; (rows, response, vocabulary)."""
        hidden = self.hidden(parameters, rows)[:, PROMPT - 1 : -1]
        head = parameters["head"]
        size = np.abs(hidden) @ np.abs(head).T
        error = (FP32.growth(hidden.shape[-1]) + 2) * FP32.unit * size
        temperature = Bounded.exact(self.case.update.temperature, FP32).widened(
            FP32.unit * self.case.update.temperature
        )
        return Bounded(hidden @ head.T, error, FP32) / temperature

    def scores(self, parameters: Parameters, rows: NDArray[np.int64]) -> tuple[Interval, Interval]:
        """Log-probabilities and entropies of the responses; anything is accepted where there is no token."""
        logits = self.response_logits(parameters, rows)
        labels = self.inputs.input_ids[rows][:, PROMPT:]
        found = (log_probs(logits, labels)[0], entropies(logits)[0])
        attended = self.inputs.attended[rows]
        log_prob, entropy = (_only(Interval.around(one), attended) for one in found)
        return log_prob, entropy

    @property
    def on_policy(self) -> bool:
        """Whether this release takes the new log-probabilities as the old ones."""
        return self.legacy and self.case.on_policy and ON_POLICY in self.objective.capabilities

    @property
    def has_trainer_steps(self) -> bool:
        """Whether the steps of the trainer of this release are methods, which can be run."""
        if self.nested:
            return self.knows_sessions
        return TRAINER_STEPS in self.objective.capabilities

    @property
    def weighted(self) -> bool:
        """Whether this release multiplies the losses of the case by rollout importance weights."""
        return self.case.weights and "rollout_is_weights" in self.objective.capabilities

    def loss_terms(
        self,
        log_prob: Array,
        entropy: Array,
        advantages: Array,
        weights: Array,
        rows: NDArray[np.int64],
        mini: int,
    ) -> LossTerms:
        """The loss of a micro-batch from its recorded log-probabilities, entropies, advantages, weights."""
        update, inputs = self.case.update, self.inputs
        mask = inputs.response_mask[rows].astype(np.float64)
        settings = self._denominators(mini)
        old = log_prob if self.on_policy else inputs.old_log_probs[rows]
        arrays = {
            "old_log_prob": old,
            "log_prob": log_prob,
            "advantages": advantages,
            "response_mask": mask,
        }
        if self.weighted:
            arrays["rollout_is_weights"] = weights
        policy = self._loss_case(
            "policy",
            arrays,
            {
                **settings,
                "loss_mode": update.loss_mode,
                "clip_ratio_low": update.clip_range[0],
                "clip_ratio_high": update.clip_range[1],
                "clip_ratio_c": 3.0,
            },
        )
        scale = len(rows) / update.ppo_mini_batch_size if self.legacy else 1.0
        value, low, high = policy.value, policy.value_low, policy.value_high
        by_log_prob = _gradient(policy)
        entropy_loss = kl_loss = None
        by_entropy = np.zeros_like(mask)
        aggregated = self._loss_case("aggregation", {"losses": entropy, "response_mask": mask}, settings)
        if aggregated.gradient is not None and update.entropy_coeff:
            entropy_loss = _value(aggregated)
            by_entropy = -update.entropy_coeff * aggregated.gradient.exact
            value = value - update.entropy_coeff * aggregated.value
            low = low - update.entropy_coeff * aggregated.value_high
            high = high - update.entropy_coeff * aggregated.value_low
        if update.use_kl_loss:
            kl = self._loss_case(
                "kl",
                {"log_prob": log_prob, "ref_log_prob": inputs.ref_log_prob[rows], "response_mask": mask},
                {**settings, "kl_penalty": update.kl_loss_type},
            )
            kl_loss = _value(kl)
            by_log_prob = by_log_prob + _gradient(kl) * update.kl_loss_coef
            value = value + update.kl_loss_coef * kl.value
            low, high = low + update.kl_loss_coef * kl.value_low, high + update.kl_loss_coef * kl.value_high
        slack = 8 * FP32.unit * (np.abs(low) + np.abs(high))
        return LossTerms(
            policy_loss=_value(policy),
            entropy_loss=entropy_loss,
            kl_loss=kl_loss,
            policy_gradient=_gradient(policy),
            loss=Interval(exact=value * scale, low=(low - slack) * scale, high=(high + slack) * scale),
            by_log_prob=by_log_prob * scale,
            by_entropy=by_entropy * scale,
        )

    def logits_gradient(self, terms: LossTerms, parameters: Parameters, rows: NDArray[np.int64]) -> Bounded:
        """The gradient of a micro-batch by the logits that predict its responses."""
        logits = self.response_logits(parameters, rows)
        labels = self.inputs.input_ids[rows][:, PROMPT:]
        attended = self.inputs.attended[rows][..., None]
        gradient = log_probs(logits, labels)[1] * terms.by_log_prob.column()
        gradient = gradient + entropies(logits)[1] * terms.by_entropy[..., None]
        gradient = gradient / self.case.update.temperature
        return Bounded(np.where(attended, gradient.value, 0.0), np.where(attended, gradient.error, 0.0), FP32)

    def _denominators(self, mini: int) -> LossSettings:
        update = self.case.update
        if self.legacy:
            return {"loss_agg_mode": update.loss_agg_mode}
        size, mini = update.ppo_mini_batch_size, mini % self.case.mini_batches
        tokens = self.inputs.response_mask[mini * size : (mini + 1) * size].sum()
        settings: LossSettings = {
            "loss_agg_mode": update.loss_agg_mode,
            "dp_size": self.case.dp_size,
            "batch_num_tokens": float(tokens + self.case.other_tokens),
            "global_batch_size": size * self.case.dp_size,
        }
        if update.loss_scale_factor and LOSS_SCALE_FACTOR in self.objective.capabilities:
            settings = {**settings, "loss_scale_factor": update.loss_scale_factor}
        return settings

    def _loss_case(
        self,
        operation: str,
        arrays: Mapping[str, NDArray[np.float64] | NDArray[np.int64]],
        settings: LossSettings,
    ) -> ExpectedResult:
        case = LossCase(name=operation, operation=operation, contract=FP32, inputs=arrays, settings=settings)
        return reference(self.objective.released_case(case)[0])


def parameter_gradients(
    logits_gradients: list[tuple[Array, NDArray[np.int64]]],
    reference_of: UpdateReference,
    parameters: Parameters,
) -> dict[str, tuple[Array, Array]]:
    """Gradient and tolerance of each parameter from recorded gradients by logits of the micro-batches, each
    (rows, positions, vocabulary) with its rows."""
    total = {name: np.zeros(shape) for name, shape in PARAMETERS.items()}
    size = {name: np.zeros(shape) for name, shape in PARAMETERS.items()}
    terms = 0
    for gradient, rows in logits_gradients:
        tokens, positions = reference_of.inputs.input_ids[rows], reference_of.inputs.position_ids[rows]
        hidden = reference_of.hidden(parameters, rows)
        back, back_size = gradient @ parameters["head"], np.abs(gradient) @ np.abs(parameters["head"])
        total["head"] += np.einsum("rpv,rph->vh", gradient, hidden)
        size["head"] += np.einsum("rpv,rph->vh", np.abs(gradient), np.abs(hidden))
        for name, index in (("embedding", tokens), ("position", positions)):
            np.add.at(total[name], index, back)
            np.add.at(size[name], index, back_size)
        terms += gradient.shape[0] * gradient.shape[1]
    growth = FP32.growth(max(terms, 1)) + FP32.growth(max(PARAMETERS["head"])) + 4
    return {name: (total[name], FP32.safety * growth * FP32.unit * size[name]) for name in total}


def clipped(
    gradients: Mapping[str, tuple[Array, Array]], limit: float
) -> tuple[Interval, dict[str, Interval]]:
    """The norm before clipping and the gradients after it, as torch's `clip_grad_norm_` computes them."""
    norm = float(np.sqrt(sum(float((value * value).sum()) for value, _ in gradients.values())))
    error = float(np.sqrt(sum(float((error * error).sum()) for _, error in gradients.values())))
    error += 64 * FP32.unit * norm
    factor = min(1.0, limit / (norm + TORCH_EPSILON))
    relative = (error / max(norm, 1e-30) if factor < 1.0 else 0.0) + 4 * FP32.unit
    return Interval.within(np.float64(norm), np.float64(error)), {  # type: ignore[arg-type]
        name: Interval.within(value * factor, tolerance * factor + relative * np.abs(value) * factor + 1e-37)
        for name, (value, tolerance) in gradients.items()
    }


class AdamW:
    """The optimizer's state in float64, from recorded gradients (arXiv:1711.05101, algorithm 2)."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.steps = 0
        self.first = {name: np.zeros(shape) for name, shape in PARAMETERS.items()}
        self.second = {name: np.zeros(shape) for name, shape in PARAMETERS.items()}

    def step(self, parameters: Parameters, gradients: Parameters) -> dict[str, Interval]:
        """The parameters after a step from recorded parameters and gradients."""
        self.steps += 1
        after = {}
        for name, start in parameters.items():
            gradient = gradients[name]
            self.first[name] = BETAS[0] * self.first[name] + (1 - BETAS[0]) * gradient
            self.second[name] = BETAS[1] * self.second[name] + (1 - BETAS[1]) * gradient**2
            mean = self.first[name] / (1 - BETAS[0] ** self.steps)
            deviation = np.sqrt(self.second[name] / (1 - BETAS[1] ** self.steps))
            change = self.learning_rate * mean / (deviation + EPSILON)
            exact = start * (1 - self.learning_rate * WEIGHT_DECAY) - change
            # Where two gradients cancel in the mean, its error is that of the terms.
            cancelled = self.learning_rate * np.abs(gradient) / (deviation + EPSILON)
            rounding = 8 * np.abs(start) + 64 * (np.abs(change) + cancelled)
            after[name] = Interval.within(exact, FP32.unit * rounding + 1e-30)
        return after


def _only(interval: Interval, valid: NDArray[np.bool_]) -> Interval:
    return Interval(
        exact=interval.exact,
        low=np.where(valid, interval.low, np.nan),
        high=np.where(valid, interval.high, np.nan),
    )


def _value(expected: ExpectedResult) -> Interval:
    return Interval(exact=expected.value, low=expected.value_low, high=expected.value_high)


def _gradient(expected: ExpectedResult) -> Bounded:
    found = expected.gradient
    if found is None:
        raise ValueError("this reference has no gradient")
    return Bounded(found.exact, np.maximum(found.high - found.exact, found.exact - found.low), FP32)
