"""Wrong losses that were written after the judge and are never used to tune it.

A mutant whose survivors were looked at belongs to the development mutants, `mutants.MUTANTS` of the unit
tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from mutants import changed
from plain_losses import PlainCandidate


def _last_row_unclipped(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, passes = original(case, ratio, advantages)
    losses, passes = np.array(losses), np.array(passes)
    losses[-1], passes[-1] = (-advantages * ratio)[-1], 1
    return losses, passes


def _clip_by_advantage(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    """The upper bound alone, whatever the advantage's sign."""
    high = case.settings["clip_ratio_high"] + 1
    losses, passes = original(case, ratio, advantages)
    return losses, np.where(ratio > high, 0, np.maximum(passes, ratio < 1)).astype(passes.dtype)


def _padding_counted(_self: Any, original: Any, case: Any) -> Any:
    """One token of padding is taken for a token of the response."""
    mask = np.array(original(case))
    ends = mask.sum(axis=-1).astype(int)
    rows = np.flatnonzero((ends > 0) & (ends < mask.shape[-1]))
    mask[rows, ends[rows]] = 1
    return mask


def _first_token_weighs_double(_self: Any, original: Any, case: Any, mask: Any) -> Any:
    share = np.array(original(case, mask))
    share[:, 0] *= 2
    return share


def _empty_rows_for_one(_self: Any, original: Any, mask: Any) -> Any:
    return max(original(mask) - 1, 1)


def _half_the_rows(_self: Any, original: Any, case: Any, mask: Any) -> Any:
    share = np.array(original(case, mask))
    share[len(share) // 2 :] = 0
    return share


def _advantage_of_previous_token(_self: Any, original: Any, case: Any, name: str) -> Any:
    array = original(case, name)
    return np.roll(array, 1, axis=-1) if name == "advantages" else array


def _stale_log_prob(_self: Any, original: Any, case: Any, name: str) -> Any:
    """The last quarter of the batch has the log-probabilities of the old policy."""
    array = np.array(original(case, name))
    if name == "log_prob" and "old_log_prob" in case.inputs:
        first = -(-array.shape[0] * 3 // 4)
        array[first:] = original(case, "old_log_prob")[first:]
    return array


def _range(_self: Any, _original: Any, _case: Any, rewards: Any) -> Any:
    spread = rewards.max() - rewards.min()
    return (rewards - rewards.mean()) / (spread + 1e-6) if spread else np.zeros_like(rewards)


def _tempered(factor: float) -> Any:
    def log_sum_exp(self: Any, original: Any, logits: Any) -> Any:
        largest, probability = original(logits)
        return largest + self.dtype(factor), probability

    return log_sum_exp


HELD_OUT: dict[str, type[PlainCandidate]] = {
    "last-row-unclipped": changed(surrogate=_last_row_unclipped),
    "upper-bound-for-both-signs": changed(surrogate=_clip_by_advantage),
    "padding-token-counted": changed(mask=_padding_counted),
    "first-token-twice": changed(share=_first_token_weighs_double),
    "one-sequence-too-few": changed(sequences=_empty_rows_for_one),
    "half-the-rows": changed(share=_half_the_rows),
    "advantages-off-by-a-token": changed(read=_advantage_of_previous_token),
    "log-probs-of-a-quarter-stale": changed(read=_stale_log_prob),
    "ratio-of-square-root": changed(token_ratio=lambda self, original, d: original(d * self.dtype(0.5))),
    "ratio-slope-one": changed(token_ratio=lambda _self, original, d: (original(d)[0], np.ones_like(d))),
    "sequence-slope-one": changed(
        sequence_ratio=lambda _self, original, d, mask: (original(d, mask)[0], np.ones_like(mask))
    ),
    "sequence-mean-of-absolutes": changed(
        sequence_mean=lambda _self, original, d, mask: original(np.abs(d), mask)
    ),
    "sequence-mean-by-largest-length": changed(
        sequence_mean=lambda self, _original, d, mask: (
            self.total(d * mask, -1) / self.dtype(max(float(mask.sum(axis=-1).max()), 1.0))
        )
    ),
    "clip-range-shared": changed(
        bounds=lambda _self, _original, case: (
            1 - (case.settings["clip_ratio_low"] + case.settings["clip_ratio_high"]) / 2,
            1 + (case.settings["clip_ratio_low"] + case.settings["clip_ratio_high"]) / 2,
        )
    ),
    "dual-clip-passes-gradient": changed(
        dual_clip=lambda _self, original, case, losses, passes, adv: (
            original(case, losses, passes, adv)[0],
            passes,
        )
    ),
    "weights-not-detached": changed(
        rollout_weights=lambda _self, original, case: np.minimum(original(case), 1).astype(np.float32)
    ),
    "advantage-by-range": changed(group=_range),
    "k2-cubed": changed(
        divergence=lambda _self, original, name, d: (
            (np.abs(d) ** 3 / 2, 1.5 * d * np.abs(d)) if name == "k2" else original(name, d)
        )
    ),
    "normaliser-off-by-a-thousandth": changed(log_sum_exp=_tempered(1e-3)),
    "icepop-strict-below": changed(
        limit=lambda _self, original, case, raw: original(case, raw) * (raw > 0.6)
    ),
    "gradient-one-part-in-two-hundred": changed(
        surrogate=lambda _self, original, case, ratio, advantages: (
            original(case, ratio, advantages)[0],
            original(case, ratio, advantages)[1] * np.float32(1.005),
        )
    ),
}


def _clipped(name: str, low: float, high: float) -> type[PlainCandidate]:
    """One input is bounded on its way in."""

    def read(_self: Any, original: Any, case: Any, wanted: str) -> Any:
        array = original(case, wanted)
        return np.clip(array, low, high).astype(array.dtype) if wanted == name else array

    return changed(read=read)


def _whitened(_self: Any, original: Any, case: Any, name: str) -> Any:
    """Advantages are normalised once more, over the tokens of the micro-batch."""
    array = original(case, name)
    valid = case.inputs["response_mask"] != 0
    if name != "advantages" or not valid.any():
        return array
    spread = array[valid].std() + 1e-8
    return np.where(valid, (array - array[valid].mean()) / spread, 0).astype(array.dtype)


def _first_row_missing(_self: Any, original: Any, case: Any, mask: Any) -> Any:
    share = np.array(original(case, mask))
    share[0] = 0
    return share


def _rows_by_length(_self: Any, original: Any, case: Any, mask: Any) -> Any:
    """Long sequences weigh more than they should."""
    lengths = mask.sum(axis=-1, keepdims=True)
    return (original(case, mask) * (lengths / max(float(lengths.mean()), 1.0))).astype(mask.dtype)


def _mask_of_neighbour(_self: Any, original: Any, case: Any) -> Any:
    return np.roll(original(case), -1, axis=0)


def _mask_shifted_left(_self: Any, original: Any, case: Any) -> Any:
    return np.roll(original(case), -1, axis=-1)


def _low_side_unclipped(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, passes = original(case, ratio, advantages)
    below = (advantages < 0) & (ratio < 1 - case.settings["clip_ratio_low"])
    return np.where(below, -advantages * ratio, losses), np.where(below, 1, passes).astype(passes.dtype)


def _gradient_of_positives_alone(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, passes = original(case, ratio, advantages)
    return losses, np.where((advantages > 0) & (ratio > 1), passes / 2, passes).astype(passes.dtype)


def _blended(self: Any, original: Any, log_ratio: Any, mask: Any) -> Any:
    """A tenth of each token's own ratio is mixed into its sequence's."""
    pairs = zip(original(log_ratio, mask), self.token_ratio(log_ratio), strict=True)
    return tuple(self.dtype(0.9) * sequence + self.dtype(0.1) * token for sequence, token in pairs)


def _labels_off_by_one(_self: Any, original: Any, case: Any) -> Any:
    labels = case.inputs["labels"]
    size = case.inputs["logits"].shape[-1]
    return original(replace(case, inputs={**case.inputs, "labels": (labels + 1) % size}))


def _weights_normalised(_self: Any, original: Any, case: Any) -> Any:
    weights, mask = original(case), case.inputs["response_mask"] != 0
    return (weights / max(float(weights[mask].mean()) if mask.any() else 1.0, 1e-6)).astype(weights.dtype)


def _mean_deviation(self: Any, _original: Any, centred: Any) -> Any:
    return self.total(np.abs(centred)) / self.dtype(centred.size) + self.dtype(1e-6)


LATER: dict[str, type[PlainCandidate]] = {
    "ratio-base-two": changed(token_ratio=lambda self, original, d: original(d * self.dtype(np.log(2)))),
    "ratio-clamped-at-half": changed(
        token_ratio=lambda self, original, d: original(np.clip(d, -0.05, 0.05).astype(self.dtype))
    ),
    "ratio-plus-a-thousandth": changed(
        token_ratio=lambda self, original, d: (original(d)[0] + self.dtype(1e-3), original(d)[1])
    ),
    "old-log-prob-floored": _clipped("old_log_prob", -3.0, 0.0),
    "log-prob-floored": _clipped("log_prob", -3.0, 0.0),
    "advantages-bounded": _clipped("advantages", -1.0, 1.0),
    "advantages-whitened-again": changed(read=_whitened),
    "first-row-missing": changed(share=_first_row_missing),
    "rows-weighed-by-length": changed(share=_rows_by_length),
    "mask-of-neighbour": changed(mask=_mask_of_neighbour),
    "mask-shifted-left": changed(mask=_mask_shifted_left),
    "low-side-unclipped": changed(surrogate=_low_side_unclipped),
    "gradient-of-raised-tokens-halved": changed(surrogate=_gradient_of_positives_alone),
    "sequence-ratio-blended": changed(sequence_ratio=_blended),
    "sequence-mean-at-most-zero": changed(
        sequence_mean=lambda _self, original, d, mask: np.minimum(original(d, mask), 0)
    ),
    "sequence-mean-without-last-token": changed(
        sequence_mean=lambda _self, original, d, mask: original(
            d * (mask.cumsum(axis=-1) < mask.sum(axis=-1, keepdims=True)), mask
        )
    ),
    "weights-normalised": changed(rollout_weights=_weights_normalised),
    "advantage-by-mean-deviation": changed(deviation=_mean_deviation),
    "k3-second-order": changed(low_variance=lambda _self, _original, d: (d * d / 2, d)),
    "labels-off-by-one": changed(logprob=_labels_off_by_one),
    "entropy-gradient-halved": changed(
        entropy=lambda _self, original, case: (original(case)[0], original(case)[1] / 2)
    ),
    "truncated-too-late": changed(
        limit=lambda _self, _original, case, raw: np.minimum(raw, case.settings["upper"] * 1.1)
    ),
}
"""Written on 2026-11-20, after `HELD_OUT`; they were not tried before the measurement."""
