"""Relations that every right loss keeps between its own results: a test that needs no reference at all.

Each relation evaluates a candidate on a case and on a changed case and returns how far the two are from
agreeing, relative to the size of the sums involved. Legal fp32 arithmetic stays below `TOLERANCE`; a wrong
mask, length, denominator, clip or sign does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics import inputs
from harness.numerics.candidate import Candidate, UnsupportedCaseError
from harness.numerics.case import Case
from harness.numerics.contract import FP32, Array

TOLERANCE = 2.0**-16
"""256 unit roundoffs of fp32. Two legal evaluations of one loss differ by about (40 operations, exponent
error below 10 ulp, sums of 512 terms in 16 lanes: 5 * sqrt(37) + 2) 95 unit roundoffs each, at worst."""

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOSSES = ("vanilla", "gspo")
BATCH, TOKENS = 8, 24


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A value with its gradient, and the size that differences are relative to."""

    value: float
    gradient: Array

    @property
    def size(self) -> float:
        """Sum of magnitudes, which cancellation in the value does not shrink."""
        return max(abs(self.value), float(np.abs(self.gradient).sum()), 1e-30)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """How far a candidate is from keeping a relation; `broken` when rounding cannot explain it."""

    relation: str
    amount: float

    @property
    def broken(self) -> bool:
        """Whether the relation does not hold."""
        return not self.amount <= TOLERANCE


class Probe:
    """Evaluates a candidate on generated policy cases."""

    def __init__(self, candidate: Candidate, seed: int) -> None:
        self.candidate = candidate
        self.rng = np.random.default_rng(seed)

    def policy(self, loss_mode: str, mode: str, *, spread: float = 0.1, **settings: Any) -> Case:
        """A policy case with an empty row, a one-token row and a full one."""
        mask = inputs.mask(self.rng, BATCH, TOKENS, "edge")
        old = inputs.old_log_probs(self.rng, BATCH, TOKENS)
        drift = inputs.row_drift(self.rng, BATCH, TOKENS, spread, spread)
        arrays: dict[str, NDArray[Any]] = {
            "old_log_prob": old,
            "log_prob": old + drift,
            "advantages": inputs.advantages(self.rng, BATCH, TOKENS, "sequence"),
            "response_mask": mask,
        }
        defaults = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.08, "clip_ratio_c": 3.0}
        return Case(
            name="metamorphic",
            operation="policy",
            contract=FP32,
            inputs=inputs.for_device(FP32, arrays),
            gradient_of="log_prob",
            settings={"loss_mode": loss_mode, "loss_agg_mode": mode, **defaults, **settings},
            requires=(loss_mode, *(("global_denominators",) if "batch_num_tokens" in settings else ())),
        )

    def run(self, case: Case) -> Outcome:
        """Value and gradient; UnsupportedCaseError passes through."""
        result = self.candidate(case)
        gradient = np.zeros(()) if result.gradient is None else np.asarray(result.gradient, dtype=np.float64)
        return Outcome(value=float(np.asarray(result.value)), gradient=gradient)

    def value(self, case: Case) -> Array:
        """An array-valued result."""
        return np.asarray(self.candidate(case).value, dtype=np.float64)


Relation = Callable[[Probe, str, str], float]


def changed(case: Case, **arrays: NDArray[Any]) -> Case:
    """The case with some inputs replaced, as float32."""
    converted = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()
    }
    return replace(case, inputs={**case.inputs, **converted})


def rearranged(case: Case, function: Callable[[NDArray[Any]], NDArray[Any]]) -> Case:
    """The case with one function applied to every input."""
    return replace(case, inputs={name: function(array) for name, array in case.inputs.items()})


def apart(first: Outcome, second: Outcome) -> float:
    """Largest difference of values or gradient elements, relative to the sums of magnitudes."""
    size = max(first.size, second.size)
    largest = max(
        float(np.abs(first.gradient).max(initial=0)), float(np.abs(second.gradient).max(initial=0)), 1e-30
    )
    gradients = float(np.abs(first.gradient - second.gradient).max(initial=0)) / largest
    return _finite(max(abs(first.value - second.value) / size, gradients))


def _finite(amount: float) -> float:
    return amount if np.isfinite(amount) else np.inf


def _scaled(outcome: Outcome, factor: float) -> Outcome:
    return Outcome(value=outcome.value * factor, gradient=outcome.gradient * factor)


def batch_order(probe: Probe, loss: str, mode: str) -> float:
    """The order of sequences does not matter."""
    case = probe.policy(loss, mode)
    order = probe.rng.permutation(BATCH)
    there = probe.run(rearranged(case, lambda array: array[order]))
    here = probe.run(case)
    return apart(Outcome(value=here.value, gradient=here.gradient[order]), there)


def padding_width(probe: Probe, loss: str, mode: str) -> float:
    """Columns of padding change nothing, the horizon being fixed."""
    case = probe.policy(loss, mode).with_settings(**_horizon(mode))
    here = probe.run(case)
    wide = probe.run(rearranged(case, lambda array: np.pad(array, ((0, 0), (0, 5)))))
    return apart(Outcome(value=here.value, gradient=np.pad(here.gradient, ((0, 0), (0, 5)))), wide)


def _horizon(mode: str) -> Mapping[str, Any]:
    return {"loss_scale_factor": TOKENS} if mode.endswith("norm") else {}


def padding_content(probe: Probe, loss: str, mode: str) -> float:
    """What stands in padding changes nothing, and no gradient arrives there."""
    case = probe.policy(loss, mode)
    padding = case.inputs["response_mask"] == 0
    filled = {
        name: np.where(padding, value, case.inputs[name])
        for name, value in (("old_log_prob", -30.0), ("log_prob", 5.0), ("advantages", -9.0))
    }
    here, there = probe.run(case), probe.run(changed(case, **filled))
    leak = float(np.abs(there.gradient[padding]).max(initial=0)) + float(
        np.abs(here.gradient[padding]).max(initial=0)
    )
    return np.inf if leak > 0 else apart(here, there)


def empty_rows(probe: Probe, loss: str, mode: str) -> float:
    """Sequences without tokens change nothing."""
    case = probe.policy(loss, mode)
    here = probe.run(case)
    more = probe.run(rearranged(case, lambda array: np.concatenate([array, np.zeros_like(array[:3])])))
    return apart(Outcome(value=here.value, gradient=np.pad(here.gradient, ((0, 3), (0, 0)))), more)


def duplication(probe: Probe, loss: str, mode: str) -> float:
    """A batch twice over has the same mean, and half the gradient for each copy."""
    case = probe.policy(loss, mode)
    here, there = probe.run(case), probe.run(rearranged(case, lambda array: np.concatenate([array, array])))
    expected = Outcome(value=here.value, gradient=np.concatenate([here.gradient, here.gradient]) / 2)
    return apart(expected, there)


def _global(case: Case, **more: Any) -> Case:
    mask = case.inputs["response_mask"]
    settings = {"batch_num_tokens": float(mask.sum()), "global_batch_size": int((mask.sum(axis=1) > 0).sum())}
    explicit = case.with_settings(dp_size=1, loss_scale_factor=mask.shape[-1], **settings, **more)
    return replace(explicit, requires=(*case.requires, "global_denominators"))


def explicit_denominators(probe: Probe, loss: str, mode: str) -> float:
    """Denominators that are given agree with those that are counted."""
    case = probe.policy(loss, mode)
    return apart(probe.run(case), probe.run(_global(case)))


def micro_batches(probe: Probe, loss: str, mode: str) -> float:
    """With global denominators, micro-batches add up to the batch."""
    whole = _global(probe.policy(loss, mode))
    parts = [probe.run(_rows(whole, first, first + 2)) for first in range(0, BATCH, 2)]
    total = Outcome(
        value=sum(part.value for part in parts), gradient=np.concatenate([part.gradient for part in parts])
    )
    return apart(probe.run(whole), total)


def _rows(case: Case, first: int, last: int) -> Case:
    return rearranged(case, lambda array: array[first:last])


def data_parallel(probe: Probe, loss: str, mode: str) -> float:
    """The loss is proportional to dp_size."""
    case = _global(probe.policy(loss, mode))
    return apart(_scaled(probe.run(case), 4), probe.run(case.with_settings(dp_size=4)))


def homogeneous(probe: Probe, loss: str, mode: str) -> float:
    """Twice the advantages, twice the loss."""
    case = probe.policy(loss, mode)
    doubled = changed(case, advantages=case.inputs["advantages"] * 2)
    return apart(_scaled(probe.run(case), 2), probe.run(doubled))


def no_advantage(probe: Probe, loss: str, mode: str) -> float:
    """Without advantages there is neither loss nor gradient."""
    case = probe.policy(loss, mode)
    outcome = probe.run(changed(case, advantages=np.zeros_like(case.inputs["advantages"])))
    return _finite(abs(outcome.value) + float(np.abs(outcome.gradient).max()))


def weight_linearity(probe: Probe, loss: str, mode: str) -> float:
    """Rollout weights multiply token losses: twice the weights, twice the loss; weight one is no weight."""
    case = replace(probe.policy(loss, mode), requires=(loss, "rollout_is_weights"))
    ones = np.ones_like(case.inputs["log_prob"])
    plain, once = probe.run(case), probe.run(changed(case, rollout_is_weights=ones))
    random = probe.rng.uniform(0.2, 2.0, ones.shape)
    first, second = (probe.run(changed(case, rollout_is_weights=random * factor)) for factor in (1, 2))
    return max(apart(plain, once), apart(_scaled(first, 2), second))


def on_policy(probe: Probe, loss: str, mode: str) -> float:
    """At ratio one the gradient sums to the loss, and sequence and token ratios agree."""
    case = probe.policy(loss, mode)
    case = changed(case, log_prob=case.inputs["old_log_prob"])
    here = probe.run(case)
    other = probe.run(
        replace(case, requires=()).with_settings(loss_mode="gspo" if loss == "vanilla" else "vanilla")
    )
    return max(apart(here, other), abs(here.value - float(here.gradient.sum())) / here.size)


def constant_advantage(probe: Probe, loss: str, mode: str) -> float:
    """On policy, advantage one everywhere: a mean is minus one, a sum minus its number of tokens per unit."""
    case = probe.policy(loss, mode)
    mask = case.inputs["response_mask"]
    outcome = probe.run(changed(case, log_prob=case.inputs["old_log_prob"], advantages=np.ones_like(mask)))
    expected = _sum_of(mask, mode)
    return _finite(abs(outcome.value + expected) / expected)


def one_token(probe: Probe, loss: str, mode: str) -> float:
    """Sequences of one token have one ratio, whichever way it is formed."""
    case = probe.policy(loss, mode).with_settings(clip_ratio_c=1e4)
    mask = np.zeros_like(case.inputs["response_mask"])
    mask[1:, 0] = 1
    case = changed(case, response_mask=mask)
    other = replace(case, requires=()).with_settings(loss_mode="gspo" if loss == "vanilla" else "vanilla")
    return apart(probe.run(case), probe.run(other))


def row_weight(probe: Probe, loss: str, mode: str) -> float:
    """On policy, every token weighs the same in token modes, every sequence in sequence means of means."""
    case = probe.policy(loss, mode)
    mask = case.inputs["response_mask"]
    outcome = probe.run(changed(case, log_prob=case.inputs["old_log_prob"], advantages=np.ones_like(mask)))
    weights = -outcome.gradient[mask > 0] if mode != "seq-mean-token-mean" else -outcome.gradient.sum(axis=1)
    weights = weights[weights != 0]
    if weights.size == 0:
        return np.inf
    return _finite(float(np.ptp(weights) / np.abs(weights).max()))


def clip_edges(probe: Probe, loss: str, mode: str) -> float:
    """Outside the clip range nothing passes, inside it does, and the loss stays at the bound's value."""
    worst = 0.0
    for sign, bound in ((1.0, "clip_ratio_high"), (-1.0, "clip_ratio_low")):
        case = probe.policy(loss, mode)
        ones = np.ones_like(case.inputs["response_mask"])
        edge = 1 + sign * case.settings[bound]
        for factor, passes in ((1 - sign * 0.01, True), (1 + sign * 0.01, False), (1 + sign * 0.3, False)):
            ratio = edge * factor
            outcome = probe.run(_uniform(case, 0.0, float(np.log(ratio)), sign))
            gradient = outcome.gradient != 0
            if not (gradient.all() if passes else not gradient.any()):
                return np.inf
            expected = -sign * (ratio if passes else edge) * _sum_of(ones, mode)
            worst = max(worst, abs(outcome.value - expected) / abs(expected))
    return _finite(worst)


def saturation(probe: Probe, loss: str, mode: str) -> float:
    """Far away a loss takes its last bound (dual clip, e^10); beyond the clamp at 20 no gradient passes."""
    case = probe.policy(loss, mode)
    ones = np.ones_like(case.inputs["response_mask"])
    bound = case.settings["clip_ratio_c"] if loss == "vanilla" else np.exp(10.0)
    expected = bound * _sum_of(ones, mode)
    outcome = probe.run(_uniform(case, -15.0, -1.0, -1.0))
    clamped = probe.run(_uniform(case, -1.0, -26.0, 1.0))
    if outcome.gradient.any() or (loss == "vanilla" and clamped.gradient.any()):
        return np.inf
    return _finite(abs(outcome.value - expected) / expected)


def _uniform(case: Case, old: float, new: float, advantage: float) -> Case:
    ones = np.ones_like(case.inputs["response_mask"])
    return changed(
        case, response_mask=ones, old_log_prob=ones * old, log_prob=ones * new, advantages=ones * advantage
    )


def _sum_of(mask: NDArray[Any], mode: str) -> float:
    """What token losses of one add up to."""
    mean_length = float(mask.sum() / (mask.sum(axis=1) > 0).sum())
    return {"seq-mean-token-sum": mean_length, "seq-mean-token-sum-norm": mean_length / TOKENS}.get(mode, 1.0)


POLICY_RELATIONS: Mapping[str, Relation] = {
    relation.__name__.replace("_", "-"): relation
    for relation in (
        batch_order,
        padding_width,
        padding_content,
        empty_rows,
        duplication,
        explicit_denominators,
        micro_batches,
        data_parallel,
        homogeneous,
        no_advantage,
        weight_linearity,
        on_policy,
        constant_advantage,
        one_token,
        row_weight,
        clip_edges,
        saturation,
    )
}


def _advantage_case(rewards: Array, index: NDArray[Any]) -> Case:
    mask = np.tile([1.0, 1.0, 0.0], (rewards.size, 1))
    arrays = {"rewards": rewards, "index": index, "response_mask": mask}
    return Case(
        name="metamorphic",
        operation="advantage",
        contract=FP32,
        inputs=inputs.for_device(FP32, arrays),
        settings={"norm_adv_by_std_in_grpo": True},
    )


def advantage_relations(probe: Probe) -> Iterator[Violation]:
    """Rewards may be shifted, stretched and reordered; equal rewards prefer nothing."""
    rewards, index = probe.rng.integers(-8, 9, 24) / 8.0, np.repeat(np.arange(4), 6)
    rewards[::6] += 2.0
    here = probe.value(_advantage_case(rewards, index))
    shifted = probe.value(_advantage_case(rewards + 4.0, index))
    stretched = probe.value(_advantage_case(rewards * 4.0, index))
    order = probe.rng.permutation(24)
    moved = probe.value(_advantage_case(rewards[order], index[order]))
    yield Violation(relation="advantage-shift", amount=_finite(float(np.abs(here - shifted).max())))
    # epsilon = 1e-6 beside a deviation of order one is all that stretching may change.
    yield Violation(relation="advantage-stretch", amount=_finite(float(np.abs(here - stretched).max())))
    yield Violation(relation="advantage-order", amount=_finite(float(np.abs(here[order] - moved).max())))
    groups = here[:, 0].reshape(4, 6)
    yield Violation(relation="advantage-sum-zero", amount=_finite(float(np.abs(groups.sum(axis=1)).max())))
    spread = np.abs(groups.std(axis=1, ddof=1) - 1).max()
    yield Violation(relation="advantage-unit-spread", amount=_finite(float(spread)))
    rises = np.sign(groups[:, 0] - groups[:, 1]) == np.sign(rewards[::6] - rewards[1::6])
    yield Violation(relation="advantage-rises-with-reward", amount=0.0 if rises.all() else np.inf)
    yield Violation(relation="advantage-padding-zero", amount=_finite(float(np.abs(here[:, 2]).max())))
    alone = probe.value(_advantage_case(np.array([0.5]), np.zeros(1, dtype=np.int64)))
    yield Violation(relation="advantage-alone", amount=_finite(abs(float(alone[0, 0]) - 0.5)))
    equal = probe.value(_advantage_case(np.full(8, 0.7), np.zeros(8, dtype=np.int64)))
    yield Violation(relation="advantage-equal-rewards", amount=_finite(float(np.abs(equal).max())))


def logit_relations(probe: Probe) -> Iterator[Violation]:
    """A constant added to all logits changes nothing; gradients over the vocabulary sum to zero."""
    mask = np.ones((3, 4))
    logits = np.round(probe.rng.normal(size=(3, 4, 32)) * 16) / 16
    arrays = {
        "logits": logits,
        "labels": probe.rng.integers(0, 32, (3, 4)),
        "weights": np.full((3, 4), 0.25),
        "response_mask": mask,
    }
    for operation in ("entropy", "logprob"):
        case = Case(
            name="metamorphic",
            operation=operation,
            contract=FP32,
            inputs=inputs.for_device(FP32, arrays),
            gradient_of="logits",
            settings={"loss_agg_mode": "token-mean"},
        )
        here, there = probe.run(case), probe.run(changed(case, logits=logits + 8.0))
        # Adding 8 costs four bits of the sums of logits.
        yield Violation(relation=f"{operation}-shift", amount=apart(here, there) / 16)
        total = float(np.abs(here.gradient.sum(axis=-1)).max() / np.abs(here.gradient).max())
        yield Violation(relation=f"{operation}-gradient-sum", amount=_finite(total))


def violations(candidate: Candidate, seed: int = 0) -> tuple[Violation, ...]:
    """Every relation for every loss and aggregation mode; those a candidate does not offer are left out."""
    probe = Probe(candidate, seed)
    found: list[Violation] = []
    for loss in LOSSES:
        for mode in MODES:
            for name, relation in POLICY_RELATIONS.items():
                found += _if_offered(_one, f"{name}/{loss}/{mode}", relation, probe, loss, mode)
    for group in (advantage_relations, logit_relations):
        found += _if_offered(group, probe)
    return tuple(found)


def _one(name: str, relation: Relation, probe: Probe, loss: str, mode: str) -> Iterator[Violation]:
    yield Violation(relation=name, amount=relation(probe, loss, mode))


def _if_offered(relations: Callable[..., Iterator[Violation]], *arguments: Any) -> list[Violation]:
    try:
        return list(relations(*arguments))
    except UnsupportedCaseError:
        return []
