"""Compares the times, throughput and memory of a run with earlier runs of the same settings and machine.

`compare` is pure: runs are mappings of named series, as for `decide`. The test is one-sided: an improvement
never fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.convergence.decision.student import student_quantile

Series = Mapping[str, Sequence[float]]

# Probability that an unchanged run is called a regression, divided among the metrics that are judged.
ALPHA = 0.005
# With fewer runs the Student bound is too wide to detect a useful regression: at 0.5 % it is 5.8 standard
# deviations for 4 runs and 9.9 for 3.
LEAST_RUNS = 4
# First steps that are ignored: they load, compile and fill caches.
WARM_UP = 2
# Smallest share of the processors that a run is assumed to have had.
LEAST_SHARE = 0.001
# exp() of more than 709 overflows a double.
LARGEST_LOG = 700.0
# Smallest relative standard deviation between runs that is used: the scatter of clock and allocator on an
# idle machine.
SMALLEST_SPREAD = 0.01


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a series is judged.

    worse: +1 if high values are bad, -1 if low values are. peak: judge the largest value, not the median.
    """

    name: str
    worse: int
    peak: bool = False


METRICS = (
    Metric(name="seconds", worse=1),
    Metric(name="throughput", worse=-1),
    Metric(name="memory_gb", worse=1, peak=True),
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of a run compared with the geometric mean of the reference runs.

    ratio: above 1 is worse, also for throughput. bound: the largest ratio that chance and other processes on
    the machine explain. crowding: the factor by which other processes widen that bound.
    """

    metric: str
    value: float
    usual: float
    ratio: float
    bound: float
    runs: int
    crowding: float = 1.0

    @property
    def worse(self) -> bool:
        """Whether the metric is worse by more than the bound."""
        return self.ratio > self.bound

    def sentence(self) -> str:
        """Both values, their ratio and the bound."""
        verdict = "more than" if self.worse else "within what"
        who = "chance explains" if self.crowding == 1 else "chance and other processes on the machine explain"
        return (
            f"{self.metric} is {self.value:.4g} where {self.runs} runs had {self.usual:.4g}: worse by a "
            f"factor of {self.ratio:.3f}, {verdict} {who} ({self.bound:.3f})"
        )


def compare(
    reference_runs: Sequence[Series],
    candidate: Series,
    metrics: Sequence[Metric] = METRICS,
    *,
    others: float = 0.0,
) -> tuple[list[Comparison], list[str]]:
    """The metrics that can be judged, the worst first, and for each other metric why it cannot be judged.

    A run's value is the median of its steps after the warm-up (for a peak: the largest value), so that single
    slow steps, caused by other work on the machine, do not count. The logarithm of the candidate's value is
    compared with the one-sided Student prediction bound of the reference runs (Hahn, Meeker and Escobar,
    Statistical Intervals, 2017, section 4.7).

    others: the share of processor time that other processes used during the candidate's run. The run had the
    share 1 - others left, so its times may have grown by the factor 1 / (1 - others); the bounds of times are
    widened by this factor.
    """
    crowding = 1 / max(LEAST_SHARE, 1 - others)
    found, notes = [], []
    for metric in metrics:
        values = [value for run in reference_runs if (value := _value(run, metric)) is not None]
        mine = _value(candidate, metric)
        if mine is None:
            notes.append(f"{metric.name} is not judged: the run has no usable values of it")
        elif len(values) < LEAST_RUNS:
            notes.append(f"{metric.name} is not judged: {len(values)} runs have it, {LEAST_RUNS} are needed")
        else:
            slack = 1.0 if metric.peak else crowding
            found.append(_compared(metric, mine, values, ALPHA / len(metrics), slack))
    return sorted(found, key=lambda one: one.bound - one.ratio), notes


def _compared(
    metric: Metric, mine: float, values: Sequence[float], alpha: float, crowding: float
) -> Comparison:
    logs = np.sort(np.log(values))
    usual, runs = float(logs.mean()), len(logs)
    spread = max(float(logs.std(ddof=1)), SMALLEST_SPREAD)
    reach = student_quantile(1 - alpha, runs - 1) * spread * math.sqrt(1 + 1 / runs)
    return Comparison(
        metric=metric.name,
        value=mine,
        usual=math.exp(usual),
        ratio=math.exp(min(LARGEST_LOG, metric.worse * (math.log(mine) - usual))),
        bound=math.exp(min(LARGEST_LOG, reach + math.log(crowding))),
        runs=runs,
        crowding=crowding,
    )


def _value(run: Series, metric: Metric) -> float | None:
    """The run's value of the metric; None unless all its values are positive and finite."""
    values = np.asarray(run.get(metric.name, ()), dtype=np.float64)
    values = values if metric.peak else values[WARM_UP:]
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        return None
    with np.errstate(over="ignore"):
        value = float(values.max() if metric.peak else np.median(values))
    return value if math.isfinite(value) else None
