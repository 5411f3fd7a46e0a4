"""What the decision rule concludes about training runs, as plain data.

Standard library only: checks import it when a plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.outcome import Status


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A run-level summary of the candidate compared with the reference runs.

    look: fraction of the steps that were tested. t: in Student units. p: corrected for the number of
        statistics.
    shared: whether every candidate run deviates to the same side of the reference mean, each by more than
        chance explains for one run (`Rule.share_alpha`).
    """

    name: str
    look: float
    runs: int
    candidate: float
    reference: float
    sd: float
    t: float
    p: float
    shared: bool

    @property
    def distance(self) -> float:
        """Candidate minus reference in between-run standard deviations."""
        return (self.candidate - self.reference) / self.sd

    def sentence(self) -> str:
        """The statistic, the size and direction of its deviation, and the number of runs."""
        series, summary = self.name.split("/", 1)
        direction = "above" if self.t > 0 else "below"
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return (
            f"{series} ({summary}) lies {abs(self.distance):.1f} between-run standard deviations "
            f"{direction} the reference (mean of {runs} at {self.look:.0%} of the steps)"
        )


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """The largest difference between a run and the recorded run of the same seed and noise.

    step: from 0. size, limit: in between-run standard deviations of that step.
    """

    series: str
    step: int
    size: float
    limit: float

    @property
    def alarm(self) -> bool:
        """Whether the difference is larger than rounding explains."""
        return self.size > self.limit

    def sentence(self) -> str:
        """The series and step at which the runs differ, the size of the difference, and the limit."""
        return (
            f"{self.series} differs at step {self.step + 1} from the same seed on the reference device by "
            f"{self.size:.2g} between-run standard deviations (rounding explains {self.limit:g})"
        )


@dataclass(frozen=True, kw_only=True)
class InterimTest:
    """One test of the rule. purpose: "screen" or "confirm"; alarm: the statistic's p fell below `level`."""

    purpose: str
    runs: int
    fraction: float
    statistic: Statistic | None
    level: float
    alarm: bool


@dataclass(frozen=True, kw_only=True)
class Decision:
    """PASS, FAIL or INCONCLUSIVE, what decided it, and what it cost.

    decided_by: "gate", "statistic", "twin", "non-inferiority", "reference" (the reference runs cannot be
        used), "runs" (more runs are needed), "running" (the run should continue) or "input" (no reward).
    runs_wanted: further runs needed for a decision, 0 when it is final. runs_used: candidate runs judged.
    runs_cost: the cost in runs if each run is stopped at the look that decided it; runs_full: the cost
        without early stops.
    shortfall: 95 % bound on how far the candidate's reward may lie below the reference, as a share of the
        reference's rise.
    """

    status: Status
    decided_by: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...] = ()
    statistic: Statistic | None = None
    looks: tuple[InterimTest, ...] = ()
    twins: tuple[Deviation | None, ...] = ()
    runs_used: int = 0
    runs_wanted: int = 0
    runs_cost: float = 0.0
    runs_full: float = 0.0
    shortfall: float | None = None
    notes: tuple[str, ...] = ()
