"""The types in which all trainings are stored. Standard library only.

Series are stored with six significant digits. NaN and infinities are stored as the texts `nan`, `inf` and
`-inf`, because JSON has no such numbers (`series.encode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.evidence import DeviceFacts

StoredNumber = float | str
StoredSeries = Mapping[str, tuple[StoredNumber, ...]]
"""Series name -> one number for each step."""
Settings = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, kw_only=True)
class MachineLoad:
    """The machine of a run, and its load by other processes.

    id: a digest that identifies the machine. load: runnable processes per processor when the run started.
    others: share of the processor time that other processes used, None if unknown.
    """

    id: str
    load: float
    others: float | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """A run that was stopped early, and why: the decision was made after `after` of `of` steps."""

    after: int
    of: int
    reason: str

    def sentence(self, made: int) -> str:
        """How much of the run was saved. made: number of steps when the run ended."""
        saved = (self.of - made) / self.of
        return f"It was stopped after {made} of {self.of} steps, which saved {saved:.0%} of the run."


@dataclass(frozen=True, kw_only=True)
class ReferenceProvenance:
    """Where, when and with which versions a reference set was recorded."""

    device: DeviceFacts
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    program: str = ""
    host: MachineLoad | None = None
    python: str = ""
    machine: str = ""
    ray: str = ""


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """Mean and 99 % prediction band of the reference runs for each step; empty without a reference set."""

    mean: tuple[StoredNumber, ...] = ()
    low: tuple[StoredNumber, ...] = ()
    high: tuple[StoredNumber, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RewardCurve:
    """The reward of one candidate run for each step."""

    seed: int
    reward: tuple[StoredNumber, ...]


@dataclass(frozen=True, kw_only=True)
class TelemetryCurves(CurveBand):
    """One series of all candidate runs, and the band of the reference runs."""

    candidate: tuple[tuple[StoredNumber, ...], ...]


@dataclass(frozen=True, kw_only=True)
class TrainingCurves:
    """The curves that a report draws. looks: the steps of the decision rule's interim tests."""

    reference: CurveBand = field(default_factory=CurveBand)
    candidate: tuple[RewardCurve, ...] = ()
    telemetry: Mapping[str, TelemetryCurves] = field(default_factory=dict)
    looks: tuple[int, ...] = ()
