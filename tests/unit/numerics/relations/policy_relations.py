"""Relations of policy losses. Each function returns how far a candidate is from fulfilling the relation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.loss.cases.loss_case import LossCase
from relations.relation_probe import (
    BATCH,
    TOKENS,
    Probe,
    ValueAndGradient,
    changed,
    finite,
    rearranged,
    relative_difference,
    scaled,
)

Relation = Callable[[Probe, str, str], float]


def batch_order(probe: Probe, loss: str, mode: str) -> float:
    """The order of sequences does not matter."""
    case = probe.policy(loss, mode)
    order = probe.rng.permutation(BATCH)
    there = probe.run(rearranged(case, lambda array: array[order]))
    here = probe.run(case)
    return relative_difference(ValueAndGradient(value=here.value, gradient=here.gradient[order]), there)


def padding_width(probe: Probe, loss: str, mode: str) -> float:
    """Additional columns of padding change nothing if the horizon is fixed."""
    case = probe.policy(loss, mode).with_settings(**_horizon(mode))
    here = probe.run(case)
    wide = probe.run(rearranged(case, lambda array: np.pad(array, ((0, 0), (0, 5)))))
    return relative_difference(
        ValueAndGradient(value=here.value, gradient=np.pad(here.gradient, ((0, 0), (0, 5)))), wide
    )


def _horizon(mode: str) -> Mapping[str, Any]:
    return {"loss_scale_factor": TOKENS} if mode.endswith("norm") else {}


def padding_content(probe: Probe, loss: str, mode: str) -> float:
    """Values in padding change nothing, and no gradient reaches padding."""
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
    return np.inf if leak > 0 else relative_difference(here, there)


def empty_rows(probe: Probe, loss: str, mode: str) -> float:
    """Sequences without tokens change nothing."""
    case = probe.policy(loss, mode)
    here = probe.run(case)
    more = probe.run(rearranged(case, lambda array: np.concatenate([array, np.zeros_like(array[:3])])))
    return relative_difference(
        ValueAndGradient(value=here.value, gradient=np.pad(here.gradient, ((0, 3), (0, 0)))), more
    )


def duplication(probe: Probe, loss: str, mode: str) -> float:
    """A batch that contains each sequence twice has the same mean, and each copy has half the gradient."""
    case = probe.policy(loss, mode)
    here, there = probe.run(case), probe.run(rearranged(case, lambda array: np.concatenate([array, array])))
    expected = ValueAndGradient(value=here.value, gradient=np.concatenate([here.gradient, here.gradient]) / 2)
    return relative_difference(expected, there)


def _global(case: LossCase, **more: Any) -> LossCase:
    mask = case.inputs["response_mask"]
    settings = {"batch_num_tokens": float(mask.sum()), "global_batch_size": int((mask.sum(axis=1) > 0).sum())}
    explicit = case.with_settings(dp_size=1, loss_scale_factor=mask.shape[-1], **settings, **more)
    return replace(explicit, requires=(*case.requires, "global_denominators"))


def explicit_denominators(probe: Probe, loss: str, mode: str) -> float:
    """Explicit denominators give the same result as counted ones."""
    case = probe.policy(loss, mode)
    return relative_difference(probe.run(case), probe.run(_global(case)))


def micro_batches(probe: Probe, loss: str, mode: str) -> float:
    """With global denominators, the results of micro-batches add up to that of the batch."""
    whole = _global(probe.policy(loss, mode))
    parts = [probe.run(_rows(whole, first, first + 2)) for first in range(0, BATCH, 2)]
    total = ValueAndGradient(
        value=sum(part.value for part in parts), gradient=np.concatenate([part.gradient for part in parts])
    )
    return relative_difference(probe.run(whole), total)


def _rows(case: LossCase, first: int, last: int) -> LossCase:
    return rearranged(case, lambda array: array[first:last])


def data_parallel(probe: Probe, loss: str, mode: str) -> float:
    """The loss is proportional to dp_size."""
    case = _global(probe.policy(loss, mode))
    return relative_difference(scaled(probe.run(case), 4), probe.run(case.with_settings(dp_size=4)))


def homogeneous(probe: Probe, loss: str, mode: str) -> float:
    """Doubling the advantages doubles the loss."""
    case = probe.policy(loss, mode)
    doubled = changed(case, advantages=case.inputs["advantages"] * 2)
    return relative_difference(scaled(probe.run(case), 2), probe.run(doubled))


def no_advantage(probe: Probe, loss: str, mode: str) -> float:
    """If all advantages are zero, the loss and its gradient are zero."""
    case = probe.policy(loss, mode)
    outcome = probe.run(changed(case, advantages=np.zeros_like(case.inputs["advantages"])))
    return finite(abs(outcome.value) + float(np.abs(outcome.gradient).max()))


def weight_linearity(probe: Probe, loss: str, mode: str) -> float:
    """Rollout weights multiply token losses: doubled weights double the loss, and weights of one change
    nothing."""
    case = replace(probe.policy(loss, mode), requires=(loss, "rollout_is_weights"))
    ones = np.ones_like(case.inputs["log_prob"])
    plain, once = probe.run(case), probe.run(changed(case, rollout_is_weights=ones))
    random = probe.rng.uniform(0.2, 2.0, ones.shape)
    first, second = (probe.run(changed(case, rollout_is_weights=random * factor)) for factor in (1, 2))
    return max(relative_difference(plain, once), relative_difference(scaled(first, 2), second))


def on_policy(probe: Probe, loss: str, mode: str) -> float:
    """At ratio one the gradient sums to the loss, and sequence-level and token-level ratios agree."""
    case = probe.policy(loss, mode)
    case = changed(case, log_prob=case.inputs["old_log_prob"])
    here = probe.run(case)
    other = probe.run(
        replace(case, requires=()).with_settings(loss_mode="gspo" if loss == "vanilla" else "vanilla")
    )
    return max(relative_difference(here, other), abs(here.value - float(here.gradient.sum())) / here.size)


def constant_advantage(probe: Probe, loss: str, mode: str) -> float:
    """On-policy with advantage one everywhere, a mean is minus one, and a sum is minus its number of tokens
    per unit."""
    case = probe.policy(loss, mode)
    mask = case.inputs["response_mask"]
    outcome = probe.run(changed(case, log_prob=case.inputs["old_log_prob"], advantages=np.ones_like(mask)))
    expected = _sum_of(mask, mode)
    return finite(abs(outcome.value + expected) / expected)


def one_token(probe: Probe, loss: str, mode: str) -> float:
    """Sequences of one token have the same ratio at sequence level and at token level."""
    case = probe.policy(loss, mode).with_settings(clip_ratio_c=1e4)
    mask = np.zeros_like(case.inputs["response_mask"])
    mask[1:, 0] = 1
    case = changed(case, response_mask=mask)
    other = replace(case, requires=()).with_settings(loss_mode="gspo" if loss == "vanilla" else "vanilla")
    return relative_difference(probe.run(case), probe.run(other))


def row_weight(probe: Probe, loss: str, mode: str) -> float:
    """On-policy, all tokens have the same weight in token modes, and all sequences in sequence means of
    means."""
    case = probe.policy(loss, mode)
    mask = case.inputs["response_mask"]
    outcome = probe.run(changed(case, log_prob=case.inputs["old_log_prob"], advantages=np.ones_like(mask)))
    weights = -outcome.gradient[mask > 0] if mode != "seq-mean-token-mean" else -outcome.gradient.sum(axis=1)
    weights = weights[weights != 0]
    if weights.size == 0:
        return np.inf
    return finite(float(np.ptp(weights) / np.abs(weights).max()))


def clip_edges(probe: Probe, loss: str, mode: str) -> float:
    """Outside the clip range no gradient passes, inside it does, and the loss stays at the value of the
    bound."""
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
    return finite(worst)


def saturation(probe: Probe, loss: str, mode: str) -> float:
    """Far from the policy a loss reaches its last bound (dual clip, e^10); beyond the clamp at 20 no gradient
    passes."""
    case = probe.policy(loss, mode)
    ones = np.ones_like(case.inputs["response_mask"])
    bound = case.settings["clip_ratio_c"] if loss == "vanilla" else np.exp(10.0)
    expected = bound * _sum_of(ones, mode)
    outcome = probe.run(_uniform(case, -15.0, -1.0, -1.0))
    clamped = probe.run(_uniform(case, -1.0, -26.0, 1.0))
    if outcome.gradient.any() or (loss == "vanilla" and clamped.gradient.any()):
        return np.inf
    return finite(abs(outcome.value - expected) / expected)


def _uniform(case: LossCase, old: float, new: float, advantage: float) -> LossCase:
    ones = np.ones_like(case.inputs["response_mask"])
    return changed(
        case, response_mask=ones, old_log_prob=ones * old, log_prob=ones * new, advantages=ones * advantage
    )


def _sum_of(mask: NDArray[Any], mode: str) -> float:
    """The aggregate of token losses that are all one."""
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
