"""Estimates how long tasks take, from recorded executions or else from a default, which counts as a guess.

A forecast adds medians. Its error has two parts. Executions scatter independently, which is added in
quadrature. The median of a check is itself uncertain, because it comes from few samples or is a guess; this
error is the same for all tasks of the check and is added linearly.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.check import Check
from harness.outcome import Tier
from harness.plan.tasks.task import Task

#: Guessed seconds of a task on an NPU, until the first measurement there. On a simulated device, `expected_s`
#: of the check is used.
COLD_START_SECONDS = {Tier.STATIC: 5.0, Tier.BUILD: 1200.0, Tier.NUMERICS: 120.0, Tier.CONVERGENCE: 3600.0}
#: A guess may be too high or too low by this factor.
GUESS_FACTOR = 3.0
#: With fewer executions on this kind of host, those on other hosts are used too.
MIN_SAMPLES = 3
#: One standard deviation of a normal distribution lies between the quantiles 0.16 and 0.84.
ONE_SIGMA = 0.84134


@dataclass(frozen=True, kw_only=True)
class TimedExecution:
    """One completed execution. device: `sim`, `npu` or `cpu`; "" for checks that use none."""

    check: str
    device: str
    host: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected seconds of a task, the range of most executions, and what the estimate is based on."""

    check: str
    seconds: float
    low: float
    high: float
    samples: int
    basis: str

    @property
    def scatter(self) -> float:
        """Half the width of the range: the standard deviation of one execution, in seconds."""
        return (self.high - self.low) / 2

    @property
    def bias(self) -> float:
        """The standard error of the median in seconds: 1.253 sigma / sqrt(n)."""
        return 1.253 * self.scatter / math.sqrt(self.samples) if self.samples else self.scatter


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Seconds of work, plus or minus `error` (one standard deviation). guessed: tasks without history."""

    seconds: float
    error: float
    tasks: int
    guessed: int

    def __str__(self) -> str:
        guessed = f", {self.guessed} of {self.tasks} guessed" if self.guessed else ""
        return f"{duration(self.seconds)} +- {duration(self.error)}{guessed}"


class CostModel:
    """Expected seconds of checks by device, preferably measured on this kind of host."""

    def __init__(self, samples: Iterable[TimedExecution] = (), host: str = "") -> None:
        self._host = host
        self._here: dict[tuple[str, str], list[float]] = {}
        self._anywhere: dict[tuple[str, str], list[float]] = {}
        for sample in samples:
            group = (sample.check, sample.device)
            self._anywhere.setdefault(group, []).append(sample.seconds)
            if sample.host == host:
                self._here.setdefault(group, []).append(sample.seconds)

    def estimate(self, check: Check, device: str) -> Estimate:
        """The cost of one execution of `check`; `device` is ignored for checks that use none."""
        group = (check.name, device if check.device else "")
        here, anywhere = self._here.get(group, []), self._anywhere.get(group, [])
        if len(here) >= MIN_SAMPLES:
            return _measured(check.name, here, f"{len(here)} executions on this kind of host")
        if anywhere:
            return _measured(check.name, anywhere, f"{len(anywhere)} executions on any host")
        seconds = COLD_START_SECONDS[check.tier] if group[1] == "npu" else check.expected_s
        return Estimate(
            check=check.name,
            seconds=seconds,
            low=seconds / GUESS_FACTOR,
            high=seconds * GUESS_FACTOR,
            samples=0,
            basis="a guess: it has not run yet",
        )

    def of_task(self, task: Task) -> Estimate:
        """The cost of executing a task."""
        return self.estimate(task.check, device_kind(task.facets))


def device_kind(facets: Mapping[str, object]) -> str:
    """The kind of device in a task's facets, or ""."""
    device = facets.get("device")
    return str(device.get("kind", "")) if isinstance(device, dict) else ""


def forecast(estimates: Sequence[Estimate]) -> Forecast:
    """The sum of estimates and its error."""
    counts = Counter(estimates)
    independent = math.fsum(count * one.scatter**2 for one, count in counts.items() if one.samples)
    common: Counter[str] = Counter()
    for one, count in counts.items():
        common[one.check] += count * one.bias  # type: ignore[assignment]
    return Forecast(
        seconds=math.fsum(one.seconds for one in estimates),
        error=math.sqrt(independent + math.fsum(bias**2 for bias in common.values())),
        tasks=len(estimates),
        guessed=sum(one.samples == 0 for one in estimates),
    )


def duration(seconds: float) -> str:
    """`12 s`, `3.5 min`, `1.2 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def _measured(check: str, seconds: list[float], basis: str) -> Estimate:
    ordered = sorted(seconds)
    median = statistics.median(ordered)
    low, high = _quantile(ordered, 1 - ONE_SIGMA), _quantile(ordered, ONE_SIGMA)
    if len(ordered) < MIN_SAMPLES:
        # Two executions that happen to take the same time do not prove a small spread.
        low, high = min(low, median / 1.5), max(high, median * 1.5)
    return Estimate(check=check, seconds=median, low=low, high=high, samples=len(ordered), basis=basis)


def _quantile(ordered: list[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
