"""What is stored of training runs, whatever trained them. Standard library only.

Series are stored with six significant digits; `nan`, `inf` and `-inf` are words, because JSON has no such
numbers (`series.encode`).
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
    """The machine that a run's times are of.

    id: a digest that only runs on this machine share. load: runnable processes per processor when the run
    started. others: share of the machine that other programs used, None where that is not known.
    """

    id: str
    load: float
    others: float | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """A run that was ended early: the steps it had made when that was decided, of how many, and why."""

    after: int
    of: int
    reason: str

    def sentence(self, made: int) -> str:
        """How much of the run this saved; `made`: the steps it had made when it ended."""
        saved = (self.of - made) / self.of
        return f"It was stopped after {made} of {self.of} steps, which saved {saved:.0%} of the run."


@dataclass(frozen=True, kw_only=True)
class ReferenceProvenance:
    """Where a reference set was recorded."""

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
    """Mean and 99 % prediction band of the reference runs, step by step; empty without a reference."""

    mean: tuple[StoredNumber, ...] = ()
    low: tuple[StoredNumber, ...] = ()
    high: tuple[StoredNumber, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RewardCurve:
    """The reward of one candidate run, step by step."""

    seed: int
    reward: tuple[StoredNumber, ...]


@dataclass(frozen=True, kw_only=True)
class TelemetryCurves(CurveBand):
    """One series of all candidate runs over the band of the reference runs."""

    candidate: tuple[tuple[StoredNumber, ...], ...]


@dataclass(frozen=True, kw_only=True)
class TrainingCurves:
    """What a report draws. looks: the steps at which the decision rule looked."""

    reference: CurveBand = field(default_factory=CurveBand)
    candidate: tuple[RewardCurve, ...] = ()
    telemetry: Mapping[str, TelemetryCurves] = field(default_factory=dict)
    looks: tuple[int, ...] = ()
