"""The measurements of the checks `grpo` and `gspo`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.convergence.decision.decision import Decision
from harness.convergence.telemetry.training_records import (
    EarlyStop,
    MachineLoad,
    ReferenceProvenance,
    Settings,
    StoredNumber,
    StoredSeries,
    TrainingCurves,
)
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class SmokeHeader:
    """The first line that a tiny training writes. fault: the name of the injected fault, or None."""

    seed: int
    recipe: Settings
    digest: str
    fault: str | None
    device: DeviceFacts
    versions: Mapping[str, str]
    python: str
    machine: str
    host: MachineLoad


@dataclass(frozen=True, kw_only=True)
class SmokeRun:
    """One tiny training. performance: the series of its times and memory, which depend on the machine."""

    seed: int
    fault: str | None
    problems: tuple[str, ...]
    series: StoredSeries
    stopped: EarlyStop | None
    host: MachineLoad | None
    performance: StoredSeries


@dataclass(frozen=True, kw_only=True)
class SmokeMeasurements:
    """The measurements of the checks `grpo` and `gspo`.

    state: how the last training program ended; returncode and tail are set unless it is "measured". With
    "unsupported", tail is why the cell's packages cannot be trained like this.
    reference: digest of the reference set, "" if there is none. seconds_per_step: the median.
    """

    state: Literal["measured", "hung", "crashed", "unsupported"]
    returncode: int = 0
    tail: str = ""
    algorithm: str
    recipe_digest: str
    recipe: Settings
    reference: str
    reference_provenance: ReferenceProvenance | None
    runs: tuple[SmokeRun, ...]
    curves: TrainingCurves
    device: DeviceFacts
    seconds_per_step: StoredNumber | None
    decision: Decision | None


SMOKE_FORMAT = measurement_format(SmokeMeasurements, version=1)
