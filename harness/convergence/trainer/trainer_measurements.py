"""The measurements of the checks that run verl's trainer."""

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
    """A function call on a stack."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ThreadStack:
    """The stack of one thread, with the innermost call first."""

    pid: int
    process: str
    thread: str
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, kw_only=True)
class TrainerSeconds:
    """Wall times of a run, in seconds. start_up: until the first step, None if there was none."""

    prepare: float
    start_up: float | None
    whole: float


@dataclass(frozen=True, kw_only=True)
class TrainerRun:
    """One run of verl's trainer, as the program in the cell writes it.

    stopped: why it was stopped before its last step, or "". returncode: None if it was killed. where: the
    call in which it hung. digest: of all settings. settings: digest of the settings without the seed.
    processes: facts that verl's processes wrote about themselves. swept: number of processes that were still
    running afterwards. complete: whether the log contains the last planned step.
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
    """A run with another seed, which the decision rule needed."""

    recipe: TrainerRecipe
    series: StoredSeries
    stop: EarlyStop | None


@dataclass(frozen=True, kw_only=True)
class GapLimits:
    """Limits of |p_rollout - p_trainer|: of its mean over the tokens of a step, and of its largest value."""

    mean: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class TrainerMeasurements(TrainerRun):
    """The measurements of a check: the run that failed, otherwise the first run.

    tail: the end of the output of a failed run. stop: why the run was stopped early, or None. more: runs with
    further seeds. limits: for runs with a vLLM rollout. left_out: for the twin of a recipe, the parts of the
    recipe that it does not have.
    """

    tail: str = ""
    stop: EarlyStop | None = None
    more: tuple[FurtherRun, ...] = ()
    reference: str = ""
    reference_provenance: ReferenceProvenance | None = None
    decision: Decision | None = None
    curves: TrainingCurves = field(default_factory=TrainingCurves)
    limits: GapLimits | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainerProgramFailure:
    """The program that runs the trainer failed or hung, so there is no run."""

    state: Literal["failed", "hung"]
    returncode: int
    tail: str


TRAINER_FORMAT = measurement_format(TrainerMeasurements, TrainerProgramFailure, version=1)
