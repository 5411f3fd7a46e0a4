"""How far behind the trainer are the weights that a rollout samples with? One step, or was one lost?

A rollout one step behind lies as far from the trainer as one step's updates have moved the policy, and verl
measures both. What never reaches a rollout adds up. Pure functions of the series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.convergence.decision.run_gates import EARLY

# verl's mean of rollout - trainer log-probability (it must not be in bypass mode), and its mean of old - new
# log-probability before each of a step's updates.
GAP, MOVE = "rollout_kl", "ppo_kl"


@dataclass(frozen=True, kw_only=True)
class WeightStaleness:
    """The gaps of steps 1 to n summed, and the moves of the steps before them; nats per token.

    largest: how many times the moves a rollout one step behind can lie away.
    """

    gap: float
    move: float
    steps: int
    largest: float

    @property
    def ratio(self) -> float:
        """Gap by move; not a number when the run's numbers are none."""
        return self.gap / self.move if self.move else float("nan")

    @property
    def alarm(self) -> bool:
        """Whether the weights of one step ago cannot explain the gap; also when it is not a number."""
        return not self.ratio <= self.largest

    def sentence(self) -> str:
        """What was compared with what."""
        verb = "more than" if self.alarm else "within"
        return (
            f"Over {self.steps} steps rollout and trainer lie {self.gap / self.steps:.3g} nats per token "
            f"apart, {self.ratio:.2f} times what a step's updates move the policy: {verb} the "
            f"{self.largest:.2f} that weights of one step ago explain."
        )


def measure_staleness(series: Mapping[str, Sequence[float]], updates: int) -> WeightStaleness | None:
    """None unless there are both series and `EARLY` steps. updates: optimizer steps in each training step."""
    gaps, moves = series.get(GAP, ()), series.get(MOVE, ())
    steps = min(len(gaps), len(moves))
    if steps < EARLY:
        return None
    return WeightStaleness(
        gap=sum(gaps[:steps]), move=sum(moves[: steps - 1]), steps=steps, largest=largest_ratio(updates)
    )


def largest_ratio(updates: int) -> float:
    """The divergence after all of a step's updates by its mean before each of them, at most.

    It grows with the square of the distance (Kullback and Leibler's divergence to second order), and nothing
    goes further than updates that all go the same way: before update i it is (i / n)^2 of the last, whose
    mean over i = 0 to n - 1 is (n - 1)(2 n - 1) / 6 n^2. One update is measured before it moves anything, so
    two at least are wanted.
    """
    if updates < 2:
        return float("inf")
    return 6 * updates**2 / ((updates - 1) * (2 * updates - 1))
