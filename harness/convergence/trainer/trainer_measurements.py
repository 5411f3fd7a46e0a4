"""What the checks that run verl's trainer measure. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.convergence.decision.decision import Decision
from harness.convergence.telemetry.training_records import (
    EarlyStop,
    MachineLoad,
    ReferenceProvenance,
    StoredSeries,
    TrainingCurves,
)
from harness.convergence.trainer.trainer_recipe import TrainerRecipe
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class StackFrame:
    """One call."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """One thread of one process, its innermost call first."""

    pid: int
    process: str
    thread: str
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, kw_only=True)
class TrainerSeconds:
    """Wall times of a trainer. start_up: until the first step, None when there was none."""

    prepare: float
    start_up: float | None
    whole: float


@dataclass(frozen=True, kw_only=True)
class TrainerRun:
    """One run of verl's trainer, as the program in the cell writes it.

    stopped: why it was ended before its last step, or "". returncode: None when it was ended. where: the
    call at which it stopped making progress. digest: identity of all settings; settings: of those that runs
    of other seeds share. processes: what verl's processes reported of themselves. swept: processes that were
    still there afterwards. complete: the log has the trainer's end.
    """

    schema: Mapping[str, object]
    state: Literal["measured", "crashed", "hung"]
    stopped: str
    returncode: int | None
    where: str
    stacks: tuple[ThreadStack, ...]
    stack_problems: tuple[str, ...]
    algorithm: str
    recipe: TrainerRecipe
    digest: str
    settings: str
    argv: tuple[str, ...]
    plugins: tuple[str, ...]
    versions: Mapping[str, str]
    ray: str
    device: DeviceFacts
    host: MachineLoad
    processes: tuple[Mapping[str, object], ...]
    seconds: TrainerSeconds
    swept: int
    series: StoredSeries
    complete: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FurtherRun:
    """A run of another seed, which the decision rule asked for."""

    recipe: TrainerRecipe
    series: StoredSeries
    stop: EarlyStop | None


@dataclass(frozen=True, kw_only=True)
class GapLimits:
    """How far rollout and trainer may differ in a token's probability by rounding alone."""

    mean: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class TrainerMeasurements(TrainerRun):
    """The checks that run verl's trainer: the first run, or the one that did not end well.

    tail: the end of the output of a run that did not end well. stop: how the run was ended early.
    more: runs of further seeds. limits: for a rollout by vLLM.
    """

    tail: str = ""
    stop: EarlyStop | None = None
    more: tuple[FurtherRun, ...] = ()
    reference: str = ""
    reference_provenance: ReferenceProvenance | None = None
    decision: Decision | None = None
    curves: TrainingCurves = field(default_factory=TrainingCurves)
    limits: GapLimits | None = None


@dataclass(frozen=True, kw_only=True)
class TrainerProgramFailure:
    """The program that should run the trainer failed or hung itself, so that there is no run."""

    state: Literal["failed", "hung"]
    returncode: int
    tail: str


TRAINER_FORMAT = measurement_format(TrainerMeasurements, TrainerProgramFailure, version=1)
