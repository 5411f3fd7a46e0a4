"""Is a run slower or larger than runs of the same settings on the same machine used to be? One-sided.

`regressions` is pure: runs are mappings of named series, as for `decide`. An improvement never fails. Host
side: uses scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.convergence.decision.bands import student_quantile

Series = Mapping[str, Sequence[float]]

# Chance that a run like the others is called a regression, split over the metrics that are judged.
ALPHA = 0.005
# A Student bound from fewer runs is wider than any regression people care about: 4 runs at 0.5 % give 5.8
# standard deviations, 3 give 9.9.
LEAST_RUNS = 4
# Steps at the start that load, compile and fill caches, and are of no step's usual cost.
WARM_UP = 2
# A run that ends has had a processor for some time.
LEAST_SHARE = 0.001
# Doubles end at e^709.
LARGEST_LOG = 700.0
# Smallest spread between runs that is believed, relative: what a quiet machine's clock and allocator show.
SMALLEST_SPREAD = 0.01


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a series is judged. worse: +1 when high is bad, -1 when low is. peak: its largest value counts."""

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
    """One metric of a run against the other runs' geometric mean.

    ratio: above 1 is worse, also for throughput. bound: the largest ratio that chance explains, and the
    others on the machine: `crowding` times as much as on a machine of its own.
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
        """Whether it is worse by more than chance."""
        return self.ratio > self.bound

    def sentence(self) -> str:
        """Both values and what chance explains."""
        verdict = "more than" if self.worse else "within what"
        who = "chance explains" if self.crowding == 1 else "chance and the others on the machine explain"
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
    """Every metric that can be judged, and why others cannot; the worst first.

    A run's value is the median of its steps after the warm-up (a peak's: the largest), so that single slow
    steps, which other work on the machine makes, do not count. The candidate's logarithm is held against the
    one-sided Student prediction bound of the reference's (Hahn, Meeker and Escobar, Statistical Intervals,
    2017, section 4.7). `others`: the share of the machine's processors that others used during the
    candidate's run. A run that could have used all of them got 1 - others, so its times may be 1 / (1 -
    others) of what they were alone, and the bounds of times are that much wider.
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


def regressions(
    reference_runs: Sequence[Series], candidate: Series, metrics: Sequence[Metric] = METRICS
) -> list[Comparison]:
    """The metrics in which `candidate` is worse than the others by more than chance, the worst first."""
    return [one for one in compare(reference_runs, candidate, metrics)[0] if one.worse]


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
    """The run's one number; None without a positive finite one."""
    values = np.asarray(run.get(metric.name, ()), dtype=np.float64)
    values = values if metric.peak else values[WARM_UP:]
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        return None
    with np.errstate(over="ignore"):
        value = float(values.max() if metric.peak else np.median(values))
    return value if math.isfinite(value) else None
