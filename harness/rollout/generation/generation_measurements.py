"""The measurements of the checks `generation`, `generation-experts`, `generation-graphs` and `plumbing`.

Also the types of the files that their programs write. Standard library only, for Python 3.10: the programs in
the cell use these types.
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

    logprobs: for each position, token id (as text) -> log-probability, of the most likely tokens and the
    generated one. cached: number of prompt tokens found in the prefix cache.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[str, float], ...]
    cached: int = 0


Rounds = tuple[tuple[GeneratedRequest, ...], ...]
"""Requests with the same prompts, once or several times."""


@dataclass(frozen=True, kw_only=True)
class FaultRun:
    """What the engine generated while a fault was injected into the operators of one family.

    fault: the specification of the fault. state: `unplaced` if none of the called operators belongs to the
    family. hit: operator -> how often the fault changed its result. named: operators that the test battery
    found wrong at the same time. why: why it was skipped. only_in_graphs: outside of graphs, the fault has no
    effect on operators.
    """

    family: str
    fault: str
    state: Literal["generated", "skipped", "unplaced"]
    why: str = ""
    rounds: Rounds = ()
    hit: Mapping[str, int] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    only_in_graphs: bool = False


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """A case, as the program in the cell ran it.

    sampling: vLLM's sampling parameters, greedy if empty. why: why it was skipped. error, trace: of a case
    that raised an error. not_simulated: operators in the error that the simulated device does not implement.
    replays: how often a graph was replayed.
    """

    name: str
    dtype: str
    checkpoint: str
    state: Literal["generated", "skipped", "raised"]
    kind: str = ""
    sampling: Mapping[str, float] = field(default_factory=dict)
    expects_cached: bool = False
    expects_replays: bool = False
    replays: int = 0
    why: str = ""
    error: str = ""
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()
    rounds: Rounds = ()
    faults: tuple[FaultRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GenerationFile:
    """The file that `generation_program` writes. calls: operator -> how often it was called."""

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
    """The reference of one request, with one entry for each position.

    logprobs: log-probabilities of the listed tokens. best: the most likely token and its log-probability.
    ranks: rank of the generated token, from 0.
    """

    logprobs: tuple[Mapping[str, float], ...]
    best: tuple[tuple[int, float], ...]
    ranks: tuple[int, ...]


ReferenceRounds = tuple[tuple[ReferenceRequest, ...], ...]


@dataclass(frozen=True, kw_only=True)
class LogProbTolerance:
    """Tolerances for the largest and the root mean square error of log-probabilities."""

    largest: float
    rms: float


@dataclass(frozen=True, kw_only=True)
class ReferenceFault:
    """The reference of the tokens that were generated with one injected fault."""

    family: str
    rounds: ReferenceRounds


@dataclass(frozen=True, kw_only=True)
class ReferenceCase:
    """The reference of one case. tolerance: the effect of rounding, to be multiplied by `safety`."""

    safety: float
    tolerance: LogProbTolerance
    rounds: ReferenceRounds
    faults: tuple[ReferenceFault, ...]


@dataclass(frozen=True, kw_only=True)
class ReferenceFile:
    """The file that `reference_log_probs` writes. cases: by name."""

    format: str
    samples: int
    cases: Mapping[str, ReferenceCase]
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LogProbErrors:
    """The errors of `compared` log-probabilities of `tokens` tokens.

    likeliest: number of tokens that are the most likely token of the reference. budget: error in units of the
    tolerance, above 1 is wrong. choice: why a token was chosen wrongly, or "".
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
    """A case that was generated.

    cached: prompt tokens found in the prefix cache, in all rounds. replays: how often a graph was replayed.
    """

    name: str
    dtype: str
    state: Literal["generated"] = "generated"
    permitted: LogProbTolerance
    cached: int
    expects_cached: bool
    replays: int = 0
    expects_replays: bool = False


@dataclass(frozen=True, kw_only=True)
class SkippedCase:
    """A case that this cell cannot run."""

    name: str
    dtype: str
    state: Literal["skipped"] = "skipped"
    why: str


@dataclass(frozen=True, kw_only=True)
class RaisedCase:
    """A case that raised an error. not_simulated: operators that the simulated device does not implement."""

    name: str
    dtype: str
    state: Literal["raised"] = "raised"
    error: str
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()


CaseResult = GeneratedCase | SkippedCase | RaisedCase


@dataclass(frozen=True, kw_only=True)
class FaultResult(LogProbErrors):
    """The effect of an injected fault on a case; see `FaultRun`."""

    case: str
    family: str
    fault: str
    state: Literal["generated"] = "generated"
    hit: Mapping[str, int]
    named: tuple[str, ...]
    only_in_graphs: bool = False


@dataclass(frozen=True, kw_only=True)
class UnmeasuredFault:
    """A fault that was not injected; see `FaultRun.state`."""

    case: str
    family: str
    fault: str
    state: Literal["skipped", "unplaced"]


@dataclass(frozen=True, kw_only=True)
class EngineSeconds:
    """Wall times of the program with the engines, and of the reference program."""

    engine: float
    reference: float


@dataclass(frozen=True, kw_only=True)
class EngineGroup:
    """The engines of one process, which ended normally."""

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
    """The measurements of the checks `generation`, `generation-experts` and `generation-graphs`."""

    cases: tuple[CaseResult, ...]
    faults: tuple[FaultResult | UnmeasuredFault, ...]
    operators: tuple[OperatorMeasurement, ...]
    groups: tuple[EngineGroup | EngineFailure, ...]


@dataclass(frozen=True, kw_only=True)
class BytesInUse:
    """Device memory in use before sleep mode, in sleep mode, and after wake-up, in bytes."""

    before: int
    asleep: int
    awake: int | None = None


StepOutcome = Literal["same", "different", "refused", "accepted", "raised"]


@dataclass(frozen=True, kw_only=True)
class PlumbingStep:
    """A step of sleep, wake-up or weight sync: the expected and the observed effect on generated tokens."""

    name: str
    expect: Literal["same", "different", "refused"]
    found: StepOutcome
    bytes: BytesInUse | None = None
    message: str = ""
    trace: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlumbingFile:
    """The file that `plumbing_program` writes."""

    format: str
    steps: tuple[PlumbingStep, ...]
    cases: tuple[CaseRun, ...]
    device: DeviceFacts
    packages: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PlumbingMeasurements:
    """The measurements of the check `plumbing`."""

    steps: tuple[PlumbingStep, ...]
    cases: tuple[GeneratedCase, ...]
    groups: tuple[EngineGroup | EngineFailure, ...]


GENERATION_FORMAT = measurement_format(GenerationMeasurements, version=1)
PLUMBING_FORMAT = measurement_format(PlumbingMeasurements, version=1)
