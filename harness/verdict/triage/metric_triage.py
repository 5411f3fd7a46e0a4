"""Compares the metrics of a log's training steps with metric signatures and with a correct run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.verdict.triage.catalogue import MetricSignature, SettingCause
from harness.verdict.triage.metric_series import MetricSeries

#: Rules about the beginning of a run use the mean of this many steps, because one value may be due to chance.
EARLY_STEPS = 5
#: The steps whose mean verl's nightly check_npu.py compares, and how many of them must exist.
NIGHTLY_STEPS = range(5, 15)
# A metric drifts only if this share of its late values is beyond its early ones (a common-language effect
# size). Noise alone moves the medians of a short run by a factor of four, but seldom separates the values.
APART = 0.95
FEWEST_STEPS = 5
#: If these are finite where others are not, the others are the first to look at.
NAMED_IF_FINITE = ("actor/entropy", "actor/pg_loss", "actor/grad_norm", "actor/ppo_kl")
REWARDS = ("critic/rewards/mean", "critic/score/mean", "raw_reward")
#: Rewards whose difference is at most this are equal for verl's nightly check_npu.py.
SAME_REWARD = 0.05
#: A reference value is clearly above the limit if it is at least this many times the limit.
CLEARLY_ABOVE = 2


@dataclass(frozen=True, kw_only=True)
class MetricMatch:
    """A metric signature that matches. `text` contains the compared values, `line` is where they begin."""

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
    """The signatures that match. Without the run that a signature compares with, it never matches."""
    matches = []
    for signature in signatures:
        other = repeat if signature.rule == "not-repeatable" else reference
        evidence = RULES[signature.rule](signature, run, other)
        if evidence:
            text, step = evidence
            matches.append(MetricMatch(signature=signature, text=text, line=run.lines.get(step, 0)))
    return tuple(matches)


#: (sentence with the compared values, first step that shows the failure), or None if the rule does not match.
_Evidence = tuple[str, int] | None


def _above(signature: MetricSignature, run: MetricSeries, _other: MetricSeries | None) -> _Evidence:
    found = run.first_of(signature.metrics)
    if found is None:
        return None
    name, values = found
    early = dict(list(values.items())[:EARLY_STEPS])
    mean = statistics.fmean(early.values())
    # A mean that is NaN counts as above the limit.
    if mean <= signature.limit:
        return None
    return f"{name} is {mean:.4g} on average in {_steps(early)}; above {signature.limit:g}", next(iter(early))


def _far_below_reference(
    signature: MetricSignature, run: MetricSeries, other: MetricSeries | None
) -> _Evidence:
    both = _both(signature.metrics, run, other)
    rewards = run.first_of(REWARDS)
    if both is None or rewards is None or _rise(rewards[1]) > SAME_REWARD:
        return None
    name, values, expected = both
    if len(values) < FEWEST_STEPS:
        return None
    median = statistics.median(abs(value) for value in values.values())
    expected_median = statistics.median(abs(value) for value in expected.values())
    if not median < signature.limit * expected_median:
        return None
    text = (
        f"the median of |{name}| is {median:.3g}, but {expected_median:.3g} in the reference, "
        f"and {rewards[0]} does not rise"
    )
    return text, next(iter(values))


def _nothing_at_first(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Evidence:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, values, expected = both
    step = next(iter(values))
    if abs(values[step]) > signature.limit or expected[step] < CLEARLY_ABOVE * signature.limit:
        return None
    return f"{name} is {values[step]:.3g} in step {step}, but {expected[step]:.3g} in the reference", step


def _mean_apart(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Evidence:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, values, expected = both
    steps = [step for step in NIGHTLY_STEPS if step in values]
    if len(steps) < FEWEST_STEPS:
        return None
    mean, expected_mean = (statistics.fmean(series[step] for step in steps) for series in (values, expected))
    if abs(mean - expected_mean) <= signature.limit:
        return None
    where = f"steps {steps[0]} to {steps[-1]}"
    return f"{name} is {mean:.3g} on average in {where}, but {expected_mean:.3g} in the reference", steps[0]


def _worse_at_last(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Evidence:
    both = _both(signature.metrics, run, other)
    if both is None:
        return None
    name, values, expected = both
    step = max(values)
    if values[step] >= expected[step] * (1 - signature.limit):
        return None
    return f"{name} is {values[step]:.4g} at step {step}, but {expected[step]:.4g} in the reference", step


def _not_repeatable(signature: MetricSignature, run: MetricSeries, other: MetricSeries | None) -> _Evidence:
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
    first, second = (series.values.get(name, {}).get(1) for series in (run, other))
    return None if first is None or second is None else (first, second)


def _both(
    names: Sequence[str], run: MetricSeries, other: MetricSeries | None
) -> tuple[str, dict[int, float], dict[int, float]] | None:
    """The first metric that both runs have, with its values in both runs at their common steps.

    Steps with a value that is not finite are left out.
    """
    for name in names if other else ():
        own, others = (series.values.get(name, {}) for series in (run, other) if series)
        steps = sorted(step for step in own.keys() & others.keys() if math.isfinite(own[step] + others[step]))
        if steps:
            return name, {step: own[step] for step in steps}, {step: others[step] for step in steps}
    return None


def _rise(values: Mapping[int, float]) -> float:
    """The mean over the last third of the steps minus the mean over the first third."""
    numbers = list(values.values())
    third = max(1, len(numbers) // 3)
    return statistics.fmean(numbers[-third:]) - statistics.fmean(numbers[:third])


def _steps(values: Mapping[int, float]) -> str:
    first, last = min(values), max(values)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _not_finite(signature: MetricSignature, run: MetricSeries, _other: MetricSeries | None) -> _Evidence:
    bad = {
        name: min(step for step, value in values.items() if not math.isfinite(value))
        for name, values in run.values.items()
        if name in signature.metrics and not all(math.isfinite(value) for value in values.values())
    }
    if not bad:
        return None
    first = min(bad.values())
    names = [name for name in signature.metrics if bad.get(name) == first]
    finite = [
        name
        for name, values in run.values.items()
        if name in NAMED_IF_FINITE and math.isfinite(values.get(first, math.nan))
    ]
    also = f"; finite in this step: {', '.join(finite)}" if finite else ""
    return f"{', '.join(names)}: {run.values[names[0]][first]} from step {first} on{also}", first


def _drift(signature: MetricSignature, run: MetricSeries, _other: MetricSeries | None) -> _Evidence:
    rewards = run.first_of(REWARDS)
    if rewards is None or _rise(rewards[1]) > -SAME_REWARD:
        return None
    for name in signature.metrics:
        values = {
            step: abs(value)
            for step, value in sorted(run.values.get(name, {}).items())
            if math.isfinite(value)
        }
        third = len(values) // 3
        if third < FEWEST_STEPS:
            continue
        numbers = list(values.values())
        early, late = statistics.median(numbers[:third]), statistics.median(numbers[-third:])
        apart = _share_above(numbers[:third], numbers[-third:])
        if not early or not late or max(apart, 1 - apart) < APART:
            continue
        if max(early / late, late / early) >= signature.limit:
            step = list(values)[-third]
            return (
                f"|{name}| goes from {early:.3g} to {late:.3g} (medians of the first and last third of the "
                f"steps), and {rewards[0]} falls"
            ), step
    return None


def _share_above(early: Sequence[float], late: Sequence[float]) -> float:
    """The share of the pairs of an early and a late value in which the late one is greater."""
    return statistics.fmean((one > other) + 0.5 * (one == other) for one in late for other in early)


def cause_with_settings(
    signature: MetricSignature, causes: Sequence[SettingCause], seen: Mapping[str, tuple[bool, int]]
) -> str:
    """The cause of a signature with the settings that explain it. seen: id -> (is on, line in the log)."""
    shown, open_, ruled_out = [], [], []
    for setting in causes:
        if setting.id not in signature.explained_by:
            continue
        found = seen.get(setting.id)
        if found is None:
            open_.append(setting.cause)
        elif found[0]:
            shown.append(f"{setting.cause} (set in line {found[1]})")
        else:
            ruled_out.append(f"{setting.id} (line {found[1]})")
    parts = [signature.cause]
    if shown:
        parts.append(f"the log shows a setting that explains it: {'; '.join(shown)}")
    elif open_:
        parts.append(f"settings that can explain it, which the log does not show: {'; '.join(open_)}")
    if ruled_out:
        parts.append(f"ruled out by the log: {', '.join(ruled_out)}")
    return ". ".join(parts)


RULES: Mapping[str, Callable[[MetricSignature, MetricSeries, MetricSeries | None], _Evidence]] = {
    "not-finite": _not_finite,
    "drift": _drift,
    "above": _above,
    "far-below-reference": _far_below_reference,
    "nothing-at-first": _nothing_at_first,
    "mean-apart": _mean_apart,
    "worse-at-last": _worse_at_last,
    "not-repeatable": _not_repeatable,
}
