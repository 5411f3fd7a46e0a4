"""Rules with which reward curves are judged today: functions of references and a candidate; True accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

Run = Mapping[str, Sequence[float]]
Accepts = Callable[[Sequence[Run], Run], bool]


def last_above_first(_references: Sequence[Run], candidate: Run) -> bool:
    """A person's rule: the last reward is higher than the first."""
    reward = np.asarray(candidate["reward"])
    return bool(np.isfinite(reward).all() and reward[-1] > reward[0])


def best_above_fifth(_references: Sequence[Run], candidate: Run) -> bool:
    """verl tests/special_e2e/check_results.py with its default target."""
    reward = np.asarray(candidate["reward"])
    return bool(np.isfinite(reward).any() and np.nanmax(reward) > 0.2)


def mann_kendall(_references: Sequence[Run], candidate: Run) -> bool:
    """Significant upward trend, p < 0.01 (normal approximation)."""
    reward = np.asarray(candidate["reward"])
    if not np.isfinite(reward).all():
        return False
    number = len(reward)
    score = sum(float(np.sign(reward[place + 1 :] - reward[place]).sum()) for place in range(number - 1))
    variance = number * (number - 1) * (2 * number + 5) / 18
    return NormalDist().cdf((1 - score) / math.sqrt(variance)) < 0.01


def _steps_to(reward: Sequence[float], level: float) -> float:
    smooth = np.convolve(reward, np.ones(5) / 5, "valid")
    above = np.flatnonzero(smooth >= level)
    return float(above[0]) if len(above) else 1.5 * len(reward)


def rcp(references: Sequence[Run], candidate: Run) -> bool:
    """MLPerf's reference convergence points (mlcommons/logging), two-sided, on the time to 90 % of it."""
    level = 0.9 * float(np.mean([np.mean(run["reward"][-6:]) for run in references]))
    times = [_steps_to(run["reward"], level) for run in references]
    spread = max(float(np.std(times, ddof=1)), 1e-9) * math.sqrt(1 + 1 / len(times))
    distance = abs(_steps_to(candidate["reward"], level) - float(np.mean(times)))
    # SciPy is only in the dependency group `bench`.
    from scipy import stats

    return bool(2 * stats.t.sf(distance / spread, len(times) - 1) > 0.05)


def pointwise_band(references: Sequence[Run], candidate: Run) -> bool:
    """Every step within three standard deviations of the reference's step."""
    rewards = np.array([run["reward"] for run in references])
    reward = np.asarray(candidate["reward"])
    inside = np.abs(reward - rewards.mean(0)) <= 3 * rewards.std(0, ddof=1)
    return bool(len(reward) == rewards.shape[1] and inside.all())


RIVALS: dict[str, Accepts] = {
    "last > first": last_above_first,
    "verl best > 0.2": best_above_fifth,
    "Mann-Kendall": mann_kendall,
    "RCP two-sided": rcp,
    "pointwise 3 sigma": pointwise_band,
}
