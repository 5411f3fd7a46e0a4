"""Mutants that nobody looked at while the judge was made. Never tune on them; see README.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from mutants import changed

from harness.numerics.plain import PlainCandidate


def _last_token_dropped(_self: Any, original: Any, case: Any) -> Any:
    mask = original(case)
    last = mask.cumsum(axis=-1) == mask.sum(axis=-1, keepdims=True)
    return np.where(last & (mask.sum(axis=-1, keepdims=True) > 1), 0, mask).astype(mask.dtype)


def _first_row_twice(_self: Any, original: Any, case: Any, mask: Any) -> Any:
    share = np.array(original(case, mask))
    share[-1] *= 2
    return share


def _neighbour(name: str) -> type[PlainCandidate]:
    """One input is read from the next row."""

    def read(_self: Any, original: Any, case: Any, wanted: str) -> Any:
        array = original(case, wanted)
        return np.roll(array, 1, axis=0) if wanted == name else array

    return changed(read=read)


def _halved_near_bound(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, passes = original(case, ratio, advantages)
    return losses, np.where(np.abs(ratio - 1) > 1e-3, passes * 0.5, passes).astype(passes.dtype)


def _clip_on_log(_self: Any, _original: Any, case: Any) -> tuple[float, float]:
    low, high = case.settings["clip_ratio_low"], case.settings["clip_ratio_high"]
    return float(np.exp(-low)), float(np.exp(high))


def _detached_for_losses(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, passes = original(case, ratio, advantages)
    return losses, np.where(advantages < 0, 0, passes).astype(passes.dtype)


def _median(self: Any, _original: Any, _case: Any, rewards: Any) -> Any:
    if rewards.size == 1 or (rewards == rewards[0]).all():
        return np.zeros_like(rewards)
    centred = rewards - np.median(rewards).astype(rewards.dtype)
    return centred / self.deviation(centred)


def _leave_one_out(_self: Any, original: Any, case: Any, rewards: Any) -> Any:
    found = original(case, rewards)
    return found * (rewards.size / max(rewards.size - 1, 1)) if rewards.size > 1 else found


HELD_OUT: dict[str, type[PlainCandidate]] = {
    "last-token-dropped": changed(mask=_last_token_dropped),
    "last-row-twice": changed(share=_first_row_twice),
    "old-log-prob-of-neighbour": _neighbour("old_log_prob"),
    "advantages-of-neighbour": _neighbour("advantages"),
    "gradient-halved-off-policy": changed(surrogate=_halved_near_bound),
    "clip-on-log-ratio": changed(bounds=_clip_on_log),
    "negative-advantages-detached": changed(surrogate=_detached_for_losses),
    "log-ratio-shrunk": changed(token_ratio=lambda self, original, d: original(d * self.dtype(0.999))),
    "sequence-ratio-shrunk": changed(
        sequence_mean=lambda self, original, d, mask: original(d, mask) * self.dtype(0.99)
    ),
    "sequence-ratio-squared": changed(
        sequence_ratio=lambda _self, original, d, mask: tuple(part * part for part in original(d, mask))
    ),
    "sequence-mean-without-first-token": changed(
        sequence_mean=lambda _self, original, d, mask: original(d * (np.arange(d.shape[-1]) > 0), mask)
    ),
    "advantage-median": changed(group=_median),
    "advantage-leave-one-out": changed(group=_leave_one_out),
    "deviation-of-squares": changed(
        deviation=lambda self, original, centred: original(centred * self.dtype(1.01))
    ),
    "softmax-temperature": changed(
        log_sum_exp=lambda self, original, logits: original(logits * self.dtype(0.98))
    ),
    "k3-clamped-at-five": changed(
        low_variance=lambda _self, original, d: (
            np.minimum(original(d)[0], 5),
            original(d)[1] * (original(d)[0] <= 5),
        )
    ),
    "icepop-bounds-open": changed(limit=lambda _self, original, case, raw: original(case, raw) * (raw < 1.9)),
    "gradient-noise-one-percent": changed(
        surrogate=lambda _self, original, case, ratio, advantages: (
            original(case, ratio, advantages)[0],
            original(case, ratio, advantages)[1]
            * (1 + 0.01 * np.sin(np.arange(ratio.size)).reshape(ratio.shape)),
        )
    ),
}
