"""Summarises telemetry series by one number for each run, so that correlation within a run does not matter.

All functions take finite arrays of at least `SHORTEST` steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision_rule import BOTH_SIDES, HIGH_IS_BAD, Feature

Floats = NDArray[np.float64]

SHORTEST = 6
# float32 overflows at 3.4e38. Values above this limit are treated like infinity.
LARGEST = 1e30
# Number of first steps that are averaged: enough to reduce noise, few enough to be before any learning.
FIRST = 3
# The share of the steps that counts as early: most runs learn in it, and telemetry varies least.
EARLY_SHARE = 1 / 3
# How far a step may lie from the median of its run before it counts as this far, in median absolute
# deviations: 2.5 standard deviations of normal noise (Huber, *Robust Statistics*, 2nd ed. 2009).
FARTHEST = 2.5 * 1.4826
# A level that is never reached counts as reached after this many times the planned steps.
NEVER = 1.5
# Between-run floor of log times: a curve crosses a level between two steps, and one step of 25 is 4 %.
TIME_FLOOR = 0.04
# The roughness of a few dozen steps has an uncertainty of 1 / sqrt(2 * 60) = 9 %.
ROUGHNESS_FLOOR = 0.09
# The largest of a few dozen values has a skewed distribution (Gumbel). With healthy runs, a smaller floor
# causes false alarms (measured).
SPIKE_FLOOR = 0.25
# The floor of the drawdown, in units of the reward's floor. The deepest fall of a rising curve has a skewed
# distribution too: a fall of 0.1 can be chance.
DRAWDOWN_FLOORS = 10


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary of a run. sides, floor: how it is compared with other runs (see `decision_rule.Feature`)."""

    value: float
    sides: int
    floor: float


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Rewards at 25, 50 and 75 % of the reference's rise; the steps that first reach them are compared."""

    quarter: float
    half: float
    most: float


def reward_summaries(reward: Floats, *, floor: float) -> dict[str, Summary]:
    """The start, area, final fifth, rise, drawdown and roughness of a reward curve."""
    width = max(FIRST, len(reward) // 10)
    smooth = np.convolve(reward, np.ones(width) / width, "valid")
    start = float(reward[: width // 2 + 1].mean())
    final = float(reward[-max(width, len(reward) // 5) :].mean())

    def both(value: float) -> Summary:
        return Summary(value=value, sides=BOTH_SIDES, floor=floor)

    return {
        "start": both(start),
        "area": both(float(reward.mean())),
        "final": both(final),
        "rise": both(final - start),
        "drawdown": Summary(
            value=float(smooth.max() - smooth[-1]), sides=HIGH_IS_BAD, floor=DRAWDOWN_FLOORS * floor
        ),
        "roughness": Summary(
            value=math.log(float(np.diff(reward).std()) + 1e-6), sides=HIGH_IS_BAD, floor=ROUGHNESS_FLOOR
        ),
    }


def crossing_times(reward: Floats, levels: Levels, *, steps: int) -> dict[str, Summary]:
    """The logarithm of the step at which the smoothed curve first reaches each level."""
    smooth = np.convolve(reward, np.ones(FIRST) / FIRST, "valid")
    result = {}
    for name, level in (("quarter", levels.quarter), ("half", levels.half), ("most", levels.most)):
        above = np.flatnonzero(smooth >= level)
        reached = float(above[0]) if len(above) else NEVER * steps
        result[f"time to {name}"] = Summary(
            value=math.log(reached + FIRST), sides=BOTH_SIDES, floor=TIME_FLOOR
        )
    return result


def centre_of(values: Floats, feature: Feature) -> float:
    """The mean; if the feature is bounded, values far outside are moved to the edge of the others."""
    if not feature.bounded:
        return float(values.mean())
    middle = _median(values)
    reach = FARTHEST * _median(np.abs(values - middle))
    return float(np.clip(values, middle - reach, middle + reach).mean())


def _median(values: Floats) -> float:
    """As `numpy.median`, which takes ten times as long for short arrays."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def feature_summaries(values: Floats, feature: Feature, *, whole: bool) -> dict[str, Summary]:
    """Summaries of the start, the mean and the last fifth of a series, on its feature's scale; its spike.

    whole: whether these are all steps of a run. Then the early third is summarised, too.
    """
    scaled = on_scale(values, feature)
    parts = {
        "start": scaled[:FIRST],
        "mean": scaled,
        "final": scaled[-max(FIRST, len(scaled) // 5) :],
    }
    if not feature.start:
        del parts["start"]
    if whole:
        parts["early"] = scaled[: max(FIRST, round(EARLY_SHARE * len(scaled)))]
    result = {
        name: Summary(
            value=centre_of(part, feature),
            sides=feature.sides,
            floor=max(feature.floor, feature.noise / math.sqrt(len(part))),
        )
        for name, part in parts.items()
    }
    if feature.spike:
        spike = float(scaled.max() - np.median(scaled))
        result["spike"] = Summary(value=spike, sides=HIGH_IS_BAD, floor=SPIKE_FLOOR)
    return result


def on_scale(values: Floats, feature: Feature) -> Floats:
    """`values` on the feature's scale; values outside its domain are moved to its edge."""
    if feature.scale == "log":
        return np.asarray(np.log(np.maximum(values, 0) + feature.offset))
    if feature.scale == "root":
        return np.asarray(np.sqrt(np.maximum(values, 0)))
    if feature.scale == "signed-log":
        return np.asarray(np.arcsinh(values / feature.offset))
    return values


def all_summaries(
    series: Mapping[str, Floats],
    *,
    reward: str,
    floor: float,
    features: tuple[Feature, ...],
    levels: Levels | None,
    steps: int,
) -> dict[str, Summary]:
    """All summaries of a run or of its first part, by "series/summary". levels: only for a whole run."""
    curve = series[reward]
    result = {f"{reward}/{name}": value for name, value in reward_summaries(curve, floor=floor).items()}
    if levels is not None:
        times = crossing_times(curve, levels, steps=steps)
        result.update({f"{reward}/{name}": value for name, value in times.items()})
    for feature in features:
        values = series.get(feature.name)
        if values is not None and len(values) == len(curve) and (np.abs(values) < LARGEST).all():
            found = feature_summaries(values, feature, whole=levels is not None)
            result.update({f"{feature.name}/{name}": value for name, value in found.items()})
    return result
