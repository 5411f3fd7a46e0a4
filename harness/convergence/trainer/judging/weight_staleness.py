"""Are the rollout's weights stale by more than one step, because a weight sync was lost?

With one-step staleness, rollout and trainer differ by as much as the updates of one step change the policy,
and verl logs both quantities. If updates never reach the rollout, the difference grows with every step. Pure
functions of the series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.convergence.decision.run_gates import EARLY

# verl's mean of rollout - trainer log-probability (not logged in bypass mode), and its mean of old - new
# log-probability before each update of a step.
GAP, MOVE = "rollout_kl", "ppo_kl"


@dataclass(frozen=True, kw_only=True)
class WeightStaleness:
    """How far rollout and trainer differ, compared with how far the updates move the policy.

    gap: the sum of `GAP` over all steps. move: the sum of `MOVE` over all steps but the last. Both in nats
    per token. largest: the largest ratio of the two that one-step staleness explains.
    """

    gap: float
    move: float
    steps: int
    largest: float

    @property
    def ratio(self) -> float:
        """gap / move; NaN if the policy did not move or a value is NaN."""
        return self.gap / self.move if self.move else float("nan")

    @property
    def alarm(self) -> bool:
        """Whether the gap is larger than one-step staleness explains, or is NaN."""
        return not self.ratio <= self.largest

    def sentence(self) -> str:
        """The gap, its ratio to the policy's movement, and the limit."""
        verb = "more than" if self.alarm else "within"
        return (
            f"Over {self.steps} steps rollout and trainer differ by {self.gap / self.steps:.3g} nats per "
            f"token, {self.ratio:.2f} times as much as the updates of one step move the policy: {verb} the "
            f"{self.largest:.2f} that one-step staleness explains."
        )


def measure_staleness(series: Mapping[str, Sequence[float]], updates: int) -> WeightStaleness | None:
    """Measure the staleness; None without both series or with fewer than `EARLY` steps.

    updates: optimizer steps in each training step.
    """
    gaps, moves = series.get(GAP, ()), series.get(MOVE, ())
    steps = min(len(gaps), len(moves))
    if steps < EARLY:
        return None
    return WeightStaleness(
        gap=sum(gaps[:steps]), move=sum(moves[: steps - 1]), steps=steps, largest=largest_ratio(updates)
    )


def largest_ratio(updates: int) -> float:
    """The largest possible ratio: divergence after all updates of a step / its mean before each update.

    To second order, the Kullback-Leibler divergence grows with the square of the distance. The ratio is
    largest
    when all n updates move the policy in the same direction: before update i the divergence is then (i / n)^2
    of the last one, with the mean (n - 1)(2 n - 1) / 6 n^2 over i = 0 to n - 1. A single update is measured
    before it moves the policy, so the ratio is only defined for two or more.
    """
    if updates < 2:
        return float("inf")
    return 6 * updates**2 / ((updates - 1) * (2 * updates - 1))
