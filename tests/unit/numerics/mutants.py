"""Wrong losses that must be detected and correct ones that must pass. Each is the plain candidate with one
method changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from plain_losses import PlainCandidate

from harness.numerics.arithmetic.precision_contract import round_to
from harness.numerics.loss.candidate import CandidateResult

Change = Callable[[PlainCandidate], Any]


def changed(**methods: Any) -> type[PlainCandidate]:
    """PlainCandidate with some methods replaced; each takes (self, original, *args)."""

    def bind(name: str, method: Any) -> Any:
        original = getattr(PlainCandidate, name)

        def call(self: PlainCandidate, *args: Any) -> Any:
            return method(self, lambda *inner: original(self, *inner), *args)

        return call

    return type("Changed", (PlainCandidate,), {name: bind(name, method) for name, method in methods.items()})


def _settings(**changes: Any) -> type[PlainCandidate]:
    """PlainCandidate that reads some settings of the case wrongly; None changes only settings that the case
    has."""

    class Misread(PlainCandidate):
        def __call__(self, case: Any) -> CandidateResult:
            wrong = {name: change(case) for name, change in changes.items() if name in case.settings}
            return super().__call__(case.with_settings(**wrong))

    return Misread


def _lengths(mask: Any) -> Any:
    return np.maximum(mask.sum(axis=-1, dtype=mask.dtype), 1)[:, None]


def _with_full_gradient(self: Any, log_ratio: Any, mask: Any) -> Any:
    """GSPO differentiated through the mean and through the token, which gives twice the gradient."""
    ratio, slope = PlainCandidate.sequence_ratio(self, log_ratio, mask)
    return ratio, 2 * slope


def _through_mean_only(self: Any, log_ratio: Any, mask: Any) -> Any:
    ratio, slope = PlainCandidate.sequence_ratio(self, log_ratio, mask)
    return ratio, slope / _lengths(mask)


def _always_passes(_self: Any, original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    losses, _ = original(case, ratio, advantages)
    return losses, np.ones_like(ratio)


def _never_clips(_self: Any, _original: Any, _case: Any, ratio: Any, advantages: Any) -> Any:
    return -advantages * ratio, np.ones_like(ratio)


def _minimum(self: Any, _original: Any, case: Any, ratio: Any, advantages: Any) -> Any:
    low, high = self.bounds(case)
    unclipped, clipped = -advantages * ratio, -advantages * np.clip(ratio, low, high).astype(ratio.dtype)
    return np.minimum(unclipped, clipped), (unclipped <= clipped).astype(ratio.dtype)


def _scaled(value: float, gradient: float) -> Any:
    def scale(_self: Any, original: Any, case: Any) -> Any:
        loss, slope = original(case)
        return loss * value, slope * gradient

    return scale


def _shifted_mask(_self: Any, original: Any, case: Any) -> Any:
    return np.roll(original(case), 1, axis=-1)


def _sequence_sum(self: Any, _original: Any, log_ratio: Any, mask: Any) -> Any:
    return self.total(log_ratio * mask, -1)


def _padded_mean(self: Any, _original: Any, log_ratio: Any, mask: Any) -> Any:
    return self.total(log_ratio * mask, -1) / self.dtype(mask.shape[-1])


def _mean_of_ratios(self: Any, _original: Any, log_ratio: Any, mask: Any) -> Any:
    ratio = (
        self.total(np.exp(np.clip(log_ratio, -20, 10)) * mask, -1)[:, None] / _lengths(mask)
    ) * np.ones_like(mask)
    return ratio, ratio


def _length_off_by_one(self: Any, _original: Any, log_ratio: Any, mask: Any) -> Any:
    return self.total(log_ratio * mask, -1) / (_lengths(mask)[:, 0] + 1)


def _denominator(compute: Callable[[Any, Any, Any], Any]) -> type[PlainCandidate]:
    return changed(denominator=lambda self, original, case, mask: compute(original(case, mask), case, mask))


def _group(compute: Callable[[Any, Any, Any], Any]) -> type[PlainCandidate]:
    return changed(
        group=lambda self, original, case, rewards: compute(original(case, rewards), case, rewards)
    )


def _divergence(name: str, compute: Callable[[Any], Any]) -> type[PlainCandidate]:
    def method(_self: Any, original: Any, estimator: str, distance: Any) -> Any:
        return compute(distance) if estimator == name else original(estimator, distance)

    return changed(divergence=method)


def _operation(name: str, value: float = 1.0, gradient: float = 1.0) -> type[PlainCandidate]:
    return changed(**{name: _scaled(value, gradient)})


def _only(mode: str, factor: Callable[[Any], Any]) -> Any:
    return lambda found, case, mask: found * factor(mask) if case.settings["loss_agg_mode"] == mode else found


def _normalised_in_batch(self: Any, _original: Any, case: Any) -> Any:
    rewards = case.inputs["rewards"].astype(self.dtype)
    return self.group(case, rewards)[:, None] * self.mask(case), None


def _entropy_without_mean(self: Any, original: Any, case: Any) -> Any:
    value, _ = original(case)
    logits = self.read(case, "logits")
    _, probability = self.log_sum_exp(logits)
    return value, -probability * logits * self.share(case, self.mask(case))[..., None]


def _unnormalised_gradient(self: Any, original: Any, case: Any) -> Any:
    value, gradient = original(case)
    probability = self.log_sum_exp(self.read(case, "logits"))[1]
    return value, gradient + 0.01 * probability * self.read(case, "weights")[..., None]


def _second_order_exp(_self: Any, _original: Any, exponent: Any) -> Any:
    return 1 + exponent + exponent * exponent / 2


MUTANTS: dict[str, type[PlainCandidate]] = {
    # aggregation
    "sum-for-mean": _denominator(lambda found, case, mask: np.ones_like(found)),
    "padded-tokens": _denominator(_only("token-mean", lambda mask: mask.size / max(mask.sum(), 1))),
    "counts-empty-rows": changed(sequences=lambda self, original, mask: mask.shape[0]),
    "token-mean-for-sequence-mean": _settings(
        loss_agg_mode=lambda case: case.settings["loss_agg_mode"].replace("seq-mean-token-mean", "token-mean")
    ),
    "sequence-mean-for-token-mean": _settings(
        loss_agg_mode=lambda case: {"token-mean": "seq-mean-token-mean"}.get(
            case.settings["loss_agg_mode"], case.settings["loss_agg_mode"]
        )
    ),
    "sequence-sum-for-norm": _settings(
        loss_agg_mode=lambda case: case.settings["loss_agg_mode"].replace("token-sum-norm", "token-sum")
    ),
    "horizon-without-sequences": _denominator(
        _only("seq-mean-token-sum-norm", lambda mask: 1 / max(int((mask.sum(axis=-1) > 0).sum()), 1))
    ),
    "length-off-by-one": _denominator(
        _only("seq-mean-token-mean", lambda mask: (_lengths(mask) + 1) / _lengths(mask))
    ),
    "tokens-off-by-one": _denominator(
        _only("token-mean", lambda mask: (mask.sum() + 1) / max(mask.sum(), 1))
    ),
    "ignores-global-tokens": _settings(
        batch_num_tokens=lambda case: float(case.inputs["response_mask"].sum())
    ),
    "ignores-global-sequences": _settings(
        global_batch_size=lambda case: case.inputs["response_mask"].shape[0]
    ),
    "ignores-horizon": _settings(loss_scale_factor=lambda case: case.inputs["response_mask"].shape[-1]),
    "ignores-dp-size": _settings(dp_size=lambda case: 1),
    "dp-size-squared": _settings(dp_size=lambda case: case.settings["dp_size"] ** 2),
    "mask-shifted": changed(mask=_shifted_mask),
    # ratio
    "ratio-inverted": changed(token_ratio=lambda self, original, d: original(-d)),
    "ratio-unclamped-low": changed(token_ratio=lambda self, original, d: (np.exp(d), np.exp(d))),
    "ratio-first-order": changed(token_ratio=lambda self, original, d: (1 + d, np.ones_like(d))),
    "ratio-detached": changed(token_ratio=lambda self, original, d: (original(d)[0], np.zeros_like(d))),
    "ratio-is-one": changed(token_ratio=lambda self, original, d: (np.ones_like(d), np.ones_like(d))),
    "exp-second-order": changed(exp=_second_order_exp),
    # sequence ratio
    "gspo-token-ratio": changed(sequence_ratio=lambda self, original, d, mask: self.token_ratio(d)),
    "gspo-sum": changed(sequence_mean=_sequence_sum),
    "gspo-padded-length": changed(sequence_mean=_padded_mean),
    "gspo-mean-of-ratios": changed(sequence_ratio=_mean_of_ratios),
    "gspo-length-off-by-one": changed(sequence_mean=_length_off_by_one),
    "gspo-gradient-doubled": changed(
        sequence_ratio=lambda self, _, d, mask: _with_full_gradient(self, d, mask)
    ),
    "gspo-gradient-by-length": changed(
        sequence_ratio=lambda self, _, d, mask: _through_mean_only(self, d, mask)
    ),
    "gspo-batch-mean": changed(
        sequence_mean=lambda self, original, d, mask: np.full_like(
            original(d, mask), original(d, mask).mean()
        )
    ),
    "gspo-unclamped": changed(
        sequence_ratio=lambda self, original, d, mask: (
            np.exp(self.sequence_mean(d, mask))[:, None] * np.ones_like(mask),
            np.exp(self.sequence_mean(d, mask))[:, None] * np.ones_like(mask),
        )
    ),
    # clipping
    "clip-swapped": changed(
        bounds=lambda self, original, case: (2 - original(case)[1], 2 - original(case)[0])
    ),
    "clip-symmetric": changed(bounds=lambda self, original, case: (original(case)[0], 2 - original(case)[0])),
    "clip-wide": changed(bounds=lambda self, original, case: (0.5, 2.0)),
    "clip-none": changed(surrogate=_never_clips),
    "clip-minimum": changed(surrogate=_minimum),
    "clip-gradient-passes": changed(surrogate=_always_passes),
    "dual-clip-none": changed(dual_clip=lambda self, original, case, losses, passes, adv: (losses, passes)),
    "dual-clip-both-signs": changed(
        dual_clip=lambda self, original, case, losses, passes, adv: (
            np.clip(
                losses, -abs(adv) * case.settings["clip_ratio_c"], abs(adv) * case.settings["clip_ratio_c"]
            ),
            passes,
        )
    ),
    "dual-clip-wrong-bound": _settings(clip_ratio_c=lambda case: case.settings["clip_ratio_c"] * 0.5),
    # scale, sign, weights
    "sign": _operation("policy", -1.0, -1.0),
    "gradient-sign": _operation("policy", 1.0, -1.0),
    "gradient-doubled": _operation("policy", 1.0, 2.0),
    "gradient-zero": _operation("policy", 1.0, 0.0),
    "loss-one-percent": _operation("policy", 1.01, 1.01),
    "loss-three-per-mille": _operation("policy", 1.003, 1.003),
    "loss-scale-ignored": _settings(scale=lambda case: 1.0),
    "weights-ignored": changed(rollout_weights=lambda self, original, case: np.ones_like(self.mask(case))),
    "weights-squared": changed(rollout_weights=lambda self, original, case: original(case) ** 2),
    # advantages
    "advantage-population-std": changed(
        deviation=lambda self, original, centred: np.sqrt(self.total(centred * centred) / centred.size) + 1e-6
    ),
    "advantage-batch": changed(advantage=_normalised_in_batch),
    "advantage-no-std": _settings(norm_adv_by_std_in_grpo=lambda case: False),
    "advantage-variance": changed(
        deviation=lambda self, original, centred: self.total(centred * centred) / (centred.size - 1) + 1e-6
    ),
    "advantage-epsilon": changed(deviation=lambda self, original, centred: original(centred) + 1e-3),
    "advantage-no-mean": _group(lambda found, case, rewards: found + rewards.mean()),
    "advantage-sign": _group(lambda found, case, rewards: -found),
    "advantage-singleton-zero": _group(lambda found, case, rewards: found * (rewards.size > 1)),
    "advantage-equal-rewards": changed(
        group=lambda self, original, case, rewards: (
            np.full_like(rewards, 0.056)
            if (rewards == rewards[0]).all() and rewards.size > 1
            else original(case, rewards)
        )
    ),
    "advantage-unmasked": changed(
        advantage=lambda self, original, case: (original(case)[0] + (1 - self.mask(case)), None)
    ),
    # divergences
    "k1-sign": _divergence("k1", lambda d: (-d, -np.ones_like(d))),
    "k2-without-half": _divergence("k2", lambda d: (d * d, 2 * d)),
    "k3-direction": _divergence("k3", lambda d: (np.exp(d) - d - 1, np.exp(d) - 1)),
    "k3-unclipped": _divergence("k3", lambda d: (np.exp(-d) + d - 1, 1 - np.exp(-d))),
    "abs-for-k1": _divergence("k1", lambda d: (np.abs(d), np.sign(d))),
    "k3-gradient-of-k1": _divergence("k3", lambda d: (np.clip(np.exp(-d) + d - 1, -10, 10), np.ones_like(d))),
    # logits
    "entropy-sign": _operation("entropy", -1.0, -1.0),
    "entropy-gradient-without-mean": changed(entropy=_entropy_without_mean),
    "entropy-in-bits": _operation("entropy", float(1 / np.log(2)), float(1 / np.log(2))),
    "logprob-gradient-doubled": _operation("logprob", 1.0, 2.0),
    "logprob-gradient-unnormalised": changed(logprob=_unnormalised_gradient),
    # rollout correction
    "limit-absent": changed(limit=lambda self, original, case, raw: raw),
    "limit-cuts-instead": changed(
        limit=lambda self, original, case, raw: np.where(raw <= case.settings["upper"], raw, 0)
    ),
}


def _bfloat16(values: Any) -> Any:
    return round_to(values, "bf16").astype(np.float32)


REGRESSIONS: dict[str, type[PlainCandidate]] = {
    "exp-bf16": changed(exp=lambda self, original, x: _bfloat16(original(x))),
    "exp-fp16-argument": changed(
        exp=lambda self, original, x: original(x.astype(np.float16).astype(np.float32))
    ),
    "sum-bf16": changed(total=lambda self, original, terms, axis=None: _bfloat16(original(terms, axis))),
    "ratio-bf16": changed(token_ratio=lambda self, original, d: tuple(_bfloat16(x) for x in original(d))),
    "mean-bf16": changed(sequence_mean=lambda self, original, d, mask: _bfloat16(original(d, mask))),
}
"""Arithmetic in a lower precision than the contract."""


def _blocked(self: Any, _original: Any, terms: Any, axis: int | None = None) -> Any:
    """Sum in blocks of 128, as a tiled kernel does."""
    flat = terms.reshape(-1) if axis is None else np.moveaxis(terms, axis, -1)
    sums = [flat[..., at : at + 128].sum(axis=-1, dtype=self.dtype) for at in range(0, flat.shape[-1], 128)]
    result = np.zeros_like(sums[0])
    for part in sums:
        result = result + part
    return np.asarray(result)


def _strided(self: Any, _original: Any, terms: Any, axis: int | None = None) -> Any:
    """Sixteen running sums over strided elements, as a vector unit does."""
    flat = terms.reshape(-1) if axis is None else np.moveaxis(terms, axis, -1)
    lanes = [
        np.add.accumulate(flat[..., lane::16], axis=-1)[..., -1] for lane in range(min(16, flat.shape[-1]))
    ]
    return np.asarray(np.sum(lanes, axis=0, dtype=self.dtype))


def _reversed(self: Any, original: Any, terms: Any, axis: int | None = None) -> Any:
    return original(np.ascontiguousarray(np.flip(terms, axis=axis)), axis)


def _exp2(self: Any, _original: Any, x: Any) -> Any:
    return np.exp2(x * self.dtype(np.log2(np.e)))


def _sloppy_exp(self: Any, original: Any, x: Any) -> Any:
    """Values that are wrong by up to three ulp, in a pattern."""
    result = original(x)
    wobble = ((np.arange(result.size).reshape(result.shape) * 7) % 7 - 3).astype(self.dtype)
    return result * (1 + wobble * self.dtype(2.0**-23))


def _reciprocal(self: Any, _original: Any, case: Any, mask: Any) -> Any:
    inverse = self.dtype(1) / np.maximum(self.denominator(case, mask), self.dtype(1e-38))
    return mask * inverse * self.dtype(case.setting("dp_size", 1)) * self.dtype(case.setting("scale", 1.0))


class DoubleInside(PlainCandidate):
    """Computes in float64."""

    def __init__(self, _precision: str = "fp64") -> None:
        super().__init__("fp64")


LEGAL: dict[str, type[PlainCandidate]] = {
    "plain": PlainCandidate,
    "float64": DoubleInside,
    "blocked-sums": changed(total=_blocked),
    "strided-sums": changed(total=_strided),
    "reversed-sums": changed(total=_reversed),
    "exp2": changed(exp=_exp2),
    "exp-three-ulp": changed(exp=_sloppy_exp),
    "reciprocal": changed(share=_reciprocal),
    "reversed-exp2": changed(total=_reversed, exp=_exp2),
}
