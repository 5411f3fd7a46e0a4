"""Did a run learn, and does its first step agree with the recorded run? Pure functions of the series.

Host side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.convergence.decision.student import student_quantile

# Probability that a policy that does not read its prompt passes the test.
ALPHA = 0.003
# Steps at the end that are averaged: a fifth of the run, as in the decision rule's summaries.
LAST_SHARE, LEAST_LAST = 0.2, 6
# Unit roundoff of HF32 (11 significant bits), the coarsest format a device computes float32 in by default.
ROUNDOFF = 2.0**-11
# Series whose first value is computed before any weight changes.
BEFORE_UPDATES = ("entropy",)
# Series whose first value depends on the first updates, and so on the order of mini-batches, which differs
# between versions of verl. The loss is not compared: it is a sum of terms of both signs, so its relative
# error means nothing.
AFTER_UPDATES = ("grad_norm", "ppo_kl")


@dataclass(frozen=True, kw_only=True)
class LearningTest:
    """The final reward of a run compared with the best reward of a policy that does not read its prompt.

    final: mean reward of the last `steps` steps. bound: its lower confidence bound at 1 - `ALPHA`.
    blind: the best mean reward without reading the prompt. start: mean reward of the first `steps` steps.
    """

    start: float
    final: float
    bound: float
    blind: float
    steps: int

    @property
    def passed(self) -> bool:
        """Whether the final reward is significantly above `blind`, and above the start."""
        return self.bound > self.blind and self.final > self.start

    def sentence(self) -> str:
        """The rise of the reward, its confidence bound, and the reward it has to exceed."""
        verb = "rises from" if self.final > self.start else "does not rise:"
        against = "above" if self.bound > self.blind else "not significantly above"
        return (
            f"The reward {verb} {self.start:.3f} to {self.final:.3f} (last {self.steps} steps, at least "
            f"{self.bound:.3f} with {1 - ALPHA:.1%} confidence), {against} {self.blind:.3f}, the best that a "
            "policy reaches without reading its prompt."
        )


@dataclass(frozen=True, kw_only=True)
class FirstStepDifference:
    """The difference between a series' first value and the recorded one."""

    series: str
    value: float
    recorded: float

    @property
    def size(self) -> float:
        """The relative difference; infinite if the values cannot be compared."""
        if not (math.isfinite(self.value) and math.isfinite(self.recorded)) or self.recorded == 0:
            return 0.0 if self.value == self.recorded else math.inf
        return abs(self.value - self.recorded) / abs(self.recorded)

    @property
    def alarm(self) -> bool:
        """Whether the difference is larger than rounding explains."""
        return self.size > ROUNDOFF

    def sentence(self) -> str:
        """Both values, their relative difference, and the limit."""
        return (
            f"{self.series} of the first step is {self.value:.6g}, and {self.recorded:.6g} in the recorded "
            f"run of the same seed: a relative difference of {self.size:.1e}, of which rounding explains "
            f"{ROUNDOFF:.1e}."
        )


def judge_learning(reward: Sequence[float], blind: float) -> LearningTest:
    """Judge a finite reward curve of at least 2 * `LEAST_LAST` steps.

    The noise of one step is estimated from differences of successive steps, which a trend hardly affects (von
    Neumann, Annals of Mathematical Statistics 12, 1941, p. 367). Their variance is twice that of the noise,
    with about 2/3 of the steps' degrees of freedom.
    """
    values = np.asarray(reward, dtype=np.float64)
    count = max(LEAST_LAST, int(LAST_SHARE * len(values)))
    noise = math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2)
    final = float(values[-count:].mean())
    reach = student_quantile(1 - ALPHA, 2 * (len(values) - 1) // 3) * noise / math.sqrt(count)
    return LearningTest(
        start=float(values[:count].mean()), final=final, bound=final - reach, blind=blind, steps=count
    )


def first_step_differences(
    series: Mapping[str, Sequence[float]], recorded: Mapping[str, Sequence[float]], *, same_verl: bool
) -> list[FirstStepDifference]:
    """Compare the first step with the recorded first step of the same seed; the largest difference first."""
    names = BEFORE_UPDATES + (AFTER_UPDATES if same_verl else ())
    found = [
        FirstStepDifference(series=name, value=series[name][0], recorded=recorded[name][0])
        for name in names
        if series.get(name) and recorded.get(name)
    ]
    return sorted(found, key=lambda one: -one.size)
