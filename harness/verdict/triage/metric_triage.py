"""Compares the metrics of a log's training steps with metric signatures and with a correct run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.verdict.triage.catalogue import MetricSignature
from harness.verdict.triage.metric_series import MetricSeries

#: Steps a rule about the beginning takes the mean of: one may be chance.
EARLY = 5
#: Steps verl's nightly check_npu.py takes the mean of, and how many of them must be there.
NIGHTLY = range(5, 15)
FEWEST = 5
REWARDS = ("critic/rewards/mean", "critic/score/mean", "raw_reward")
#: Rewards this close are equal to verl's nightly check_npu.py.
SAME_REWARD = 0.05
#: How many times the limit a reference must have to count as something.
SOMETHING = 2


@dataclass(frozen=True, kw_only=True)
class MetricMatch:
    """A metric signature that fits; `text` says what was measured against what, `line` shows it."""

    signature: MetricSignature
    text: str
    line: int


def metric_matches(
    signatures: Sequence[MetricSignature],
    run: MetricSeries,
    *,
    reference: MetricSeries | None = None,
    repeat: MetricSeries | None = None,
) -> tuple[MetricMatch, ...]:
    """The signatures that fit; one that needs a reference or a repetition which is not given never does."""
    found = []
    for signature in signatures:
        other = repeat if signature.rule == "not-repeatable" else reference
        evidence = RULES[signature.rule](signature, run, other)
        if evidence:
            text, step = evidence
            found.append(MetricMatch(signature=signature, text=text, line=run.lines.get(step, 0)))
    return tuple(found)


_Said = tuple[str, int] | None


def _above(signature: MetricSignature, run: MetricSeries, _other: MetricSeries | None) -> _Said:
    found = run.first_of(signature.metrics)
    if found is None:
        return None
    name, values = found
    early = dict(list(values.items())[:EARLY])
    mean = statistics.fmean(early.values())
    # A mean that is no number is above every limit.
    if mean <= signature.limit:
        return None
    return f"{name} is {mean:.4g} on average in {_steps(early)}; above {signature.limit:g}", next(iter(early))


def _far_below_reference(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Said:
    both = _both(signature.metrics, run, other)
    rewards = run.first_of(REWARDS)
    if both is None or rewards is None or _rise(rewards[1]) > SAME_REWARD:
        return None
    name, mine, theirs = both
    if len(mine) < FEWEST:
        return None
    low = statistics.median(abs(value) for value in mine.values())
    usual = statistics.median(abs(value) for value in theirs.values())
    if not low < signature.limit * usual:
        return None
    text = f"|{name}| is {low:.3g} and the reference's {usual:.3g}, while {rewards[0]} does not rise"
    return text, next(iter(mine))


def _nothing_at_first(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Said:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, mine, theirs = both
    step = next(iter(mine))
    if abs(mine[step]) > signature.limit or theirs[step] < SOMETHING * signature.limit:
        return None
    return f"{name} is {mine[step]:.3g} in step {step}, and {theirs[step]:.3g} in the reference", step


def _mean_apart(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Said:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, mine, theirs = both
    steps = [step for step in NIGHTLY if step in mine]
    if len(steps) < FEWEST:
        return None
    left, right = (statistics.fmean(one[step] for step in steps) for one in (mine, theirs))
    if abs(left - right) <= signature.limit:
        return None
    where = f"steps {steps[0]} to {steps[-1]}"
    return f"{name} is {left:.3g} on average in {where}, and {right:.3g} in the reference", steps[0]


def _worse_at_last(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Said:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, mine, theirs = both
    step = max(mine)
    if mine[step] >= theirs[step] * (1 - signature.limit):
        return None
    return f"{name} is {mine[step]:.4g} at step {step}, and {theirs[step]:.4g} in the reference", step


def _not_repeatable(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Said:
    if other is None:
        return None
    *compared, first, second = signature.metrics
    pairs = {name: _step_one(name, run, other) for name in signature.metrics}
    if any(pairs[name] is None or len(set(pairs[name] or ())) > 1 for name in (first, second)):
        return None
    for name in compared:
        pair = pairs[name]
        if pair is None:
            continue
        largest = max(abs(pair[0]), abs(pair[1]))
        if largest and not abs(pair[0] - pair[1]) <= signature.limit * largest:
            text = f"{name} is {pair[0]:.6g} and {pair[1]:.6g} in step 1 of two runs with the same responses"
            return text, 1
    return None


def _step_one(name: str, run: MetricSeries, other: MetricSeries) -> tuple[float, float] | None:
    left, right = (one.values.get(name, {}).get(1) for one in (run, other))
    return None if left is None or right is None else (left, right)


def _both(
    names: Sequence[str], run: MetricSeries, other: MetricSeries | None
) -> tuple[str, dict[int, float], dict[int, float]] | None:
    """The first metric both runs have, at the steps both have; numbers only."""
    for name in names if other else ():
        mine, theirs = (one.values.get(name, {}) for one in (run, other) if one)
        steps = sorted(
            step for step in mine.keys() & theirs.keys() if math.isfinite(mine[step] + theirs[step])
        )
        if steps:
            return name, {step: mine[step] for step in steps}, {step: theirs[step] for step in steps}
    return None


def _rise(values: Mapping[int, float]) -> float:
    """Mean of the last third of the steps less that of the first."""
    numbers = list(values.values())
    third = max(1, len(numbers) // 3)
    return statistics.fmean(numbers[-third:]) - statistics.fmean(numbers[:third])


def _steps(values: Mapping[int, float]) -> str:
    first, last = min(values), max(values)
    return f"step {first}" if first == last else f"steps {first} to {last}"


RULES: Mapping[str, Callable[[MetricSignature, MetricSeries, MetricSeries | None], _Said]] = {
    "above": _above,
    "far-below-reference": _far_below_reference,
    "nothing-at-first": _nothing_at_first,
    "mean-apart": _mean_apart,
    "worse-at-last": _worse_at_last,
    "not-repeatable": _not_repeatable,
}
