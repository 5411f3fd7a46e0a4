"""A plain implementation of every loss in working precision: the simplest candidate.

It follows the formulas, one array operation per step, with hand-written gradients. It shares no code with the
reference. Each step is a method, so that a correct variant (another order of summation, another exponential)
or a wrong one can be made by replacing one method.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import FORMATS, Mask, round_to
from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase

Floats = NDArray[Any]

DTYPES = {"fp32": np.float32, "fp64": np.float64}


class PlainCandidate:
    """Evaluates cases with numpy; `precision` is fp32 or fp64."""

    def __init__(self, precision: str = "fp32") -> None:
        self.dtype: Any = DTYPES[precision]

    def __call__(self, case: LossCase) -> CandidateResult:
        """Value and gradient of a case, the gradient rounded to the contract's io format."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value, gradient = getattr(self, case.operation)(case)
        if gradient is not None:
            gradient = round_to(np.asarray(gradient, dtype=np.float64), case.contract.io)
        return CandidateResult(value=np.asarray(value, dtype=np.float64), gradient=gradient)

    def read(self, case: LossCase, name: str) -> Floats:
        """An input in working precision, zero on padding."""
        array = case.inputs[name]
        valid = case.inputs["response_mask"] != 0
        if array.ndim > valid.ndim:
            valid = valid[..., None]
        return np.where(valid, array, 0).astype(self.dtype)

    def mask(self, case: LossCase) -> Floats:
        """The response mask in working precision."""
        return case.inputs["response_mask"].astype(self.dtype)

    def total(self, terms: Floats, axis: int | None = None) -> Floats:
        """A sum in any order."""
        return np.asarray(terms.sum(axis=axis, dtype=self.dtype))

    def exp(self, exponent: Floats) -> Floats:
        """The exponential."""
        return np.asarray(np.exp(exponent))

    # --- policy losses

    def policy(self, case: LossCase) -> tuple[Floats, Floats]:
        """Loss and gradient by log_prob."""
        mask, advantages = self.mask(case), self.read(case, "advantages")
        log_ratio = self.read(case, "log_prob") - self.read(case, "old_log_prob")
        ratio, slope = self.ratio(case, log_ratio, mask)
        losses, passes = self.surrogate(case, ratio, advantages)
        weights = self.rollout_weights(case)
        share = self.share(case, mask)
        value = self.total(losses * weights * share)
        return value, -advantages * passes * slope * weights * share

    def ratio(self, case: LossCase, log_ratio: Floats, mask: Floats) -> tuple[Floats, Floats]:
        """Importance ratio per token, and its derivative by log_prob."""
        if case.settings["loss_mode"] == "gspo":
            return self.sequence_ratio(log_ratio, mask)
        return self.token_ratio(log_ratio)

    def token_ratio(self, log_ratio: Floats) -> tuple[Floats, Floats]:
        """exp of the clamped log-ratio."""
        ratio = self.exp(np.clip(log_ratio, -20, 20))
        return ratio, ratio * (np.abs(log_ratio) <= 20)

    def sequence_ratio(self, log_ratio: Floats, mask: Floats) -> tuple[Floats, Floats]:
        """exp of the mean log-ratio of a sequence. The derivative is that of each token alone."""
        mean = self.sequence_mean(log_ratio, mask)[:, None]
        ratio = np.broadcast_to(self.exp(np.minimum(mean, 10)), mask.shape)
        return ratio, ratio * (mean <= 10)

    def sequence_mean(self, log_ratio: Floats, mask: Floats) -> Floats:
        """Mean log-ratio over valid tokens, (batch,)."""
        return np.asarray(self.total(log_ratio * mask, -1) / np.maximum(self.total(mask, -1), 1))

    def bounds(self, case: LossCase) -> tuple[float, float]:
        """Clip range of the ratio."""
        return 1 - float(case.settings["clip_ratio_low"]), 1 + float(case.settings["clip_ratio_high"])

    def surrogate(self, case: LossCase, ratio: Floats, advantages: Floats) -> tuple[Floats, Floats]:
        """Token losses, and whether the gradient of the ratio passes (0 or 1)."""
        low, high = self.bounds(case)
        unclipped = -advantages * ratio
        clipped = -advantages * np.clip(ratio, self.dtype(low), self.dtype(high))
        losses = np.maximum(unclipped, clipped)
        passes = unclipped >= clipped
        if case.settings["loss_mode"] != "gspo":
            losses, passes = self.dual_clip(case, losses, passes, advantages)
        return losses, passes.astype(self.dtype)

    def dual_clip(
        self, case: LossCase, losses: Floats, passes: Mask, advantages: Floats
    ) -> tuple[Floats, Mask]:
        """Limit the loss of tokens with a negative advantage."""
        ceiling = -advantages * self.dtype(case.settings["clip_ratio_c"])
        capped = (advantages < 0) & (losses > ceiling)
        return np.where(capped, ceiling, losses), passes & ~capped

    def rollout_weights(self, case: LossCase) -> Floats:
        """Weights of the rollout correction, 1 if there are none."""
        if "rollout_is_weights" in case.inputs:
            return self.read(case, "rollout_is_weights")
        return np.ones_like(self.mask(case))

    # --- aggregation

    def share(self, case: LossCase, mask: Floats) -> Floats:
        """d(loss) / d(token loss)."""
        factor = case.setting("dp_size", 1) * case.setting("scale", 1.0)
        shares = mask / np.maximum(self.denominator(case, mask), self.dtype(FORMATS["fp32"].flush))
        return np.asarray(shares * self.dtype(factor))

    def denominator(self, case: LossCase, mask: Floats) -> Floats:
        """The divisor of a token loss, broadcastable to (batch, tokens)."""
        mode = case.settings["loss_agg_mode"]
        if mode == "token-sum":
            return np.asarray(1, dtype=self.dtype)
        if mode == "token-mean":
            return np.asarray(case.setting("batch_num_tokens", mask.sum()), dtype=self.dtype)
        lengths = np.maximum(self.total(mask, -1), 1)[:, None]
        sequences = np.asarray(case.setting("global_batch_size", self.sequences(mask)), dtype=self.dtype)
        if mode == "seq-mean-token-sum":
            return sequences
        if mode == "seq-mean-token-mean":
            return np.asarray(lengths * sequences)
        return np.asarray(sequences * self.dtype(case.setting("loss_scale_factor", mask.shape[-1])))

    def sequences(self, mask: Floats) -> int:
        """Number of sequences that count."""
        return int((mask.sum(axis=-1) > 0).sum())

    def aggregation(self, case: LossCase) -> tuple[Floats, Floats]:
        """Aggregate of given token losses."""
        share = self.share(case, self.mask(case))
        return self.total(self.read(case, "losses") * share), share

    # --- divergences, advantages, logits, weights

    def kl(self, case: LossCase) -> tuple[Floats, Floats]:
        """Aggregated KL estimate."""
        estimator = str(case.settings["kl_penalty"])
        distance = self.read(case, "log_prob") - self.read(case, "ref_log_prob")
        value, slope = self.divergence(estimator.rstrip("+"), distance)
        if estimator.endswith("+"):
            slope = distance
        share = self.share(case, self.mask(case))
        return self.total(value * share), slope * share

    def divergence(self, estimator: str, distance: Floats) -> tuple[Floats, Floats]:
        """KL estimate per token and its derivative by log_prob."""
        if estimator == "k1":
            return distance, np.ones_like(distance)
        if estimator == "abs":
            return np.abs(distance), np.sign(distance)
        if estimator == "k2":
            return distance * distance / 2, distance
        return self.low_variance(distance)

    def low_variance(self, distance: Floats) -> tuple[Floats, Floats]:
        """The k3 estimator."""
        argument = np.clip(-distance, -20, 20)
        power = self.exp(argument)
        raw = power - argument - 1
        inside = (np.abs(distance) <= 20) & (np.abs(raw) <= 10)
        return np.clip(raw, -10, 10), (1 - power) * inside

    def advantage(self, case: LossCase) -> tuple[Floats, None]:
        """GRPO advantages."""
        rewards = case.inputs["rewards"].astype(self.dtype)
        index = case.inputs["index"]
        result = np.zeros_like(rewards)
        for group in np.unique(index):
            members = index == group
            result[members] = self.group(case, rewards[members])
        return result[:, None] * self.mask(case), None

    def group(self, case: LossCase, rewards: Floats) -> Floats:
        """Advantages within one group."""
        divided = case.setting("norm_adv_by_std_in_grpo", True)
        if rewards.size == 1:
            return rewards / self.dtype(1 + 1e-6) if divided else rewards
        if (rewards == rewards[0]).all():
            return np.zeros_like(rewards)
        centred = rewards - self.total(rewards) / self.dtype(rewards.size)
        return np.asarray(centred / self.deviation(centred) if divided else centred)

    def deviation(self, centred: Floats) -> Floats:
        """Standard deviation of a group, plus the epsilon against division by zero."""
        variance = self.total(centred * centred) / self.dtype(centred.size - 1)
        return np.asarray(np.sqrt(variance) + self.dtype(1e-6))

    def log_sum_exp(self, logits: Floats) -> tuple[Floats, Floats]:
        """Normaliser (batch, tokens) and probabilities."""
        largest = logits.max(axis=-1, keepdims=True)
        powers = self.exp(logits - largest)
        total = self.total(powers, -1)[..., None]
        return (largest + np.log(total))[..., 0], powers / total

    def entropy(self, case: LossCase) -> tuple[Floats, Floats]:
        """Aggregated entropy of logits."""
        logits = self.read(case, "logits")
        normaliser, probability = self.log_sum_exp(logits)
        mean = self.total(probability * logits, -1)
        share = self.share(case, self.mask(case))
        gradient = -probability * (logits - mean[..., None]) * share[..., None]
        return self.total((normaliser - mean) * share), gradient

    def logprob(self, case: LossCase) -> tuple[Floats, Floats]:
        """Weighted log-probabilities of labels."""
        logits, labels = self.read(case, "logits"), case.inputs["labels"][..., None]
        normaliser, probability = self.log_sum_exp(logits)
        chosen = np.take_along_axis(logits, labels, axis=-1)[..., 0]
        weights = self.read(case, "weights")
        one_hot = np.zeros_like(logits)
        np.put_along_axis(one_hot, labels, 1, axis=-1)
        return self.total((chosen - normaliser) * weights), (one_hot - probability) * weights[..., None]

    def weights(self, case: LossCase) -> tuple[Floats, None]:
        """Rollout-correction weights."""
        mask = self.mask(case)
        log_ratio = self.read(case, "old_log_prob") - self.read(case, "rollout_log_prob")
        if case.settings["rollout_is"] == "sequence":
            log_ratio = np.broadcast_to(self.total(log_ratio, -1)[:, None], mask.shape)
        raw = self.exp(np.clip(log_ratio, -20, 20)) * mask
        limited = self.limit(case, raw)
        if case.setting("normalised", False):
            rows = self.total(limited, -1) / np.maximum(self.total(mask, -1), 1)
            of_tokens = self.total(limited) / self.total(mask)
            by_token = case.settings["rollout_is"] == "token"
            sequences = self.dtype(np.count_nonzero(mask.any(axis=1)))
            limited = limited / (of_tokens if by_token else self.total(rows) / sequences)
        return limited, None

    def limit(self, case: LossCase, raw: Floats) -> Floats:
        """Truncate the weights, or set those outside of the trusted range to zero."""
        upper, lower = case.settings["upper"], case.setting("lower")
        if lower is None:
            return np.asarray(np.minimum(raw, self.dtype(upper)))
        return np.where((raw >= lower) & (raw <= upper), raw, 0)
