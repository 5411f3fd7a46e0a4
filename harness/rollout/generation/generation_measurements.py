"""What the checks `generation`, `generation-experts` and `plumbing` measure.

Also the files that their programs leave each other. Standard library only: the programs in the cell write
these shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.cell_program.program_run import ProgramFailure
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.rollout.operators.operator_result import OperatorMeasurement


@dataclass(frozen=True, kw_only=True)
class GeneratedRequest:
    """The tokens generated for one prompt.

    logprobs: for each place, token id (as text) -> log-probability of the likeliest tokens and the chosen
    one. cached: tokens of the prompt that the prefix cache had.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[str, float], ...]
    cached: int = 0


Rounds = tuple[tuple[GeneratedRequest, ...], ...]
"""The same prompts, once or several times."""


@dataclass(frozen=True, kw_only=True)
class FaultRun:
    """What the engine generated while operators of one family were wrong.

    fault: the specification that was injected. state: `unplaced` when no operator of the family is known
    among those called. hit: operator -> how often it was struck. named: operators that the battery of
    operators found wrong meanwhile. why: why it was skipped.
    """

    family: str
    fault: str
    state: Literal["generated", "skipped", "unplaced"]
    why: str = ""
    rounds: Rounds = ()
    hit: Mapping[str, int] = field(default_factory=dict)
    named: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """One way to generate, as the program in the cell ran it.

    sampling: how tokens were chosen, greedily when empty. why: why it was skipped. error, trace: what it
    raised. not_simulated: operators that the simulated device lacks, from the error.
    """

    name: str
    dtype: str
    checkpoint: str
    state: Literal["generated", "skipped", "raised"]
    kind: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)
    expects_cached: bool = False
    why: str = ""
    error: str = ""
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()
    rounds: Rounds = ()
    faults: tuple[FaultRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerationFile:
    """The file of the program that generates. calls: operator -> how often it was called."""

    format: str
    group: str
    cases: tuple[CaseRun, ...]
    calls: Mapping[str, int]
    operators: tuple[OperatorMeasurement, ...]
    device: DeviceFacts
    packages: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ReferenceRequest:
    """The reference of one request, for each place: exact log-probabilities of the listed tokens, the
    likeliest token with its log-probability, and the rank of the chosen token, from 0."""

    logprobs: tuple[Mapping[str, float], ...]
    best: tuple[tuple[int, float], ...]
    ranks: tuple[int, ...]


ReferenceRounds = tuple[tuple[ReferenceRequest, ...], ...]


@dataclass(frozen=True, kw_only=True)
class LogProbTolerance:
    """The largest and the root mean square error of log-probabilities that is allowed."""

    largest: float
    rms: float


@dataclass(frozen=True, kw_only=True)
class ReferenceFault:
    """The reference of what was generated under one injected fault."""

    family: str
    rounds: ReferenceRounds


@dataclass(frozen=True, kw_only=True)
class ReferenceCase:
    """The reference of one case. tolerance: how far legal roundings go, to be multiplied by `safety`."""

    safety: float
    tolerance: LogProbTolerance
    rounds: ReferenceRounds
    faults: tuple[ReferenceFault, ...]


@dataclass(frozen=True, kw_only=True)
class ReferenceFile:
    """The file of the program that evaluates the reference; cases by name."""

    format: str
    samples: int
    cases: Mapping[str, ReferenceCase]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LogProbErrors:
    """Errors of `compared` log-probabilities of `tokens` tokens.

    likeliest: how many of the tokens are the reference's own first choice. budget: error in units of the
    tolerance, above 1 is wrong. choice: why a token cannot have been chosen, or "".
    """

    largest: float
    rms: float
    compared: int
    tokens: int
    likeliest: int
    budget: float
    choice: str


@dataclass(frozen=True, kw_only=True)
class GeneratedCase(LogProbErrors):
    """A case that generated. cached: prompt tokens that the prefix cache had, in all rounds."""

    name: str
    dtype: str
    state: Literal["generated"] = "generated"
    permitted: LogProbTolerance
    cached: int
    expects_cached: bool


@dataclass(frozen=True, kw_only=True)
class SkippedCase:
    """A case that this cell cannot run."""

    name: str
    dtype: str
    state: Literal["skipped"] = "skipped"
    why: str


@dataclass(frozen=True, kw_only=True)
class RaisedCase:
    """A case that raised; not_simulated: operators that the simulated device lacks."""

    name: str
    dtype: str
    state: Literal["raised"] = "raised"
    error: str
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()


CaseResult = GeneratedCase | SkippedCase | RaisedCase


@dataclass(frozen=True, kw_only=True)
class FaultResult(LogProbErrors):
    """What an injected fault did to a case; see `InjectedFault`."""

    case: str
    family: str
    fault: str
    state: Literal["generated"] = "generated"
    hit: Mapping[str, int]
    named: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class UnmeasuredFault:
    """A fault that was skipped, or for which no operator is known."""

    case: str
    family: str
    fault: str
    state: Literal["skipped", "unplaced"]


@dataclass(frozen=True, kw_only=True)
class EngineSeconds:
    """Wall times of an engine with all its cases, and of their reference."""

    engine: float
    reference: float


@dataclass(frozen=True, kw_only=True)
class EngineGroup:
    """An engine, or several of one process, that ran to its end."""

    group: str
    state: Literal["measured"] = "measured"
    calls: Mapping[str, int] = field(default_factory=dict)
    device: DeviceFacts
    packages: Mapping[str, str]
    seconds: EngineSeconds


@dataclass(frozen=True, kw_only=True)
class EngineFailure(ProgramFailure):
    """An engine whose process hung or crashed."""

    group: str


@dataclass(frozen=True, kw_only=True)
class GenerationMeasurements:
    """The checks `generation` and `generation-experts`."""

    cases: tuple[CaseResult, ...]
    faults: tuple[FaultResult | UnmeasuredFault, ...]
    operators: tuple[OperatorMeasurement, ...]
    groups: tuple[EngineGroup | EngineFailure, ...]


@dataclass(frozen=True, kw_only=True)
class BytesInUse:
    """Device memory in use before sleeping, asleep, and awake again."""

    before: int
    asleep: int
    awake: int | None = None


StepOutcome = Literal["same", "different", "refused", "accepted", "raised"]


@dataclass(frozen=True, kw_only=True)
class PlumbingStep:
    """One thing that a trainer does to its engine: what must happen to what is generated, and what did."""

    name: str
    expect: Literal["same", "different", "refused"]
    found: StepOutcome
    bytes: BytesInUse | None = None
    message: str = ""
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlumbingFile:
    """The file of the program that treats an engine as a trainer does."""

    format: str
    steps: tuple[PlumbingStep, ...]
    cases: tuple[CaseRun, ...]
    device: DeviceFacts
    packages: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlumbingMeasurements:
    """The check `plumbing`."""

    steps: tuple[PlumbingStep, ...]
    cases: tuple[GeneratedCase, ...]
    groups: tuple[EngineGroup | EngineFailure, ...]


GENERATION_FORMAT = measurement_format(GenerationMeasurements, version=1)
PLUMBING_FORMAT = measurement_format(PlumbingMeasurements, version=1)
