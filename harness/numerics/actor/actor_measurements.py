"""The measurements of the checks `actor` and `actor-bf16`, and the reports of their programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.cell_program.self_test import SelfTestFault
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format

Errors = Mapping[str, float | None]
"""Label of each tensor -> distance from the reference; None if it is missing, has the wrong shape or is not
finite."""


@dataclass(frozen=True, kw_only=True)
class ActorReferenceFacts:
    """How the reference was computed.

    samples: number of perturbed runs. contract: name of the precision contract. paths: verl's actor classes,
        the default first. slack: the smallest distance of a clip decision from its bound, in units of the
        largest rounding error there; None if there was no decision. unbounded_operators: operators without an
        error bound.
    """

    verl: str
    torch: str
    samples: int
    contract: str
    paths: tuple[str, ...]
    slack: float | None
    unbounded_operators: tuple[str, ...]
    frameworks_loaded: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ActorReference:
    """The reference without its tensors.

    labels: all recorded tensors in the order of computation. tolerances, norms: by label. strict: tolerances
        without the guesses for unbounded operators, empty if there are none.
    """

    facts: ActorReferenceFacts
    labels: tuple[str, ...]
    tolerances: Mapping[str, float]
    strict: Mapping[str, float]
    norms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RecordedTensor:
    """A tensor of one update on the device. operators: those that ran since the previous tensor."""

    label: str
    kind: str
    sentence: str
    operators: tuple[str, ...]
    error: float | None


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One recomputed matmul of a linear layer.

    name: name of the layer. what: the output or one of the gradients. call: number of the pass, from 0.
        elements: number of elements of the result; wrong: how many of them are outside of their interval.
        worst: the largest distance from the exact result, in units in the last place of the io format.
    """

    name: str
    what: str
    call: int
    elements: int
    wrong: int
    worst: float


@dataclass(frozen=True, kw_only=True)
class RecomputedMatmuls:
    """The matmuls of one update: their number, their elements, the wrong ones, and the wrong ones for each
    fault."""

    count: int = 0
    elements: int = 0
    wrong: tuple[Matmul, ...] = ()
    faults: Mapping[str, tuple[Matmul, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackedErrors:
    """Errors of an update with packed rows, and of one with a fault injected.

    skipped: why it was not run. error: the exception that it raised.
    """

    errors: Errors = field(default_factory=dict)
    faulty: Errors = field(default_factory=dict)
    skipped: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class ActorDeviceRun:
    """What the program on the device writes.

    finding: a defect of this verl that was worked around, or "". missing: labels of the reference that the
        device did not compute. differing: labels that differ between two runs. faults: errors for each
        injected fault.
    """

    device: DeviceFacts
    verl: str
    path: str
    compute: str
    finding: str
    events: tuple[RecordedTensor, ...]
    missing: tuple[str, ...]
    differing: tuple[str, ...]
    faults: Mapping[str, Errors]
    matmuls: RecomputedMatmuls
    packed: PackedErrors
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DivergedTensor:
    """A tensor outside of its tolerance. budget: error divided by tolerance, None if the error is not
    finite."""

    label: str
    kind: str
    sentence: str
    operators: tuple[str, ...]
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class TensorKindSummary:
    """All tensors of one kind: forward, backward, gradient, parameter, output or loss."""

    tensors: int
    diverged: int
    worst_budget: float


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """The gradient of one parameter in one step; error and tolerance are relative to the norm of the
    gradient."""

    name: str
    step: int
    relative_error: float | None
    tolerance: float
    budget: float | None


@dataclass(frozen=True, kw_only=True)
class GradientResolution:
    """How large an error of a gradient must be to be detected, see `gradient_resolution`.

    steps: for each step, the tolerances of all parameters together, relative to the whole gradient; None if
        the gradient is zero. unobservable: gradients smaller than their tolerance. unjudged: kinds of
        parameters whose gradients are all unobservable.
    """

    steps: Mapping[str, float | None]
    unobservable: tuple[str, ...]
    unjudged: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """The update with packed rows and fused attention.

    skipped: why it was not run. error: the exception that it raised. first: the first wrong tensor, of the
        kind `kind`.
    """

    skipped: str = ""
    error: str = ""
    tensors: int = 0
    diverged: int = 0
    first: str = ""
    kind: str = ""
    worst_budget: float = 0.0
    fault_caught: bool = True


@dataclass(frozen=True, kw_only=True)
class LocatedFault(SelfTestFault):
    """A fault of the self-test. place: the module with the fault. first: the first tensor that diverged."""

    place: str
    first: str


@dataclass(frozen=True, kw_only=True)
class ActorMeasured:
    """One update through one of verl's actor classes, compared with the reference.

    path: the actor class. compute: the format in which the model computes. bypassed: number of modules that a
        fused kernel replaces on the device. guessed: tensors that are within their tolerance only because of
        a guess for an operator without an error bound. others: the same measurements for verl's other actor
        classes.
    """

    state: Literal["measured"] = "measured"
    verl: str
    path: str
    compute: str
    finding: str
    device: DeviceFacts
    tensors: int
    diverged: int
    first: DivergedTensor | None
    named: tuple[DivergedTensor, ...]
    kinds: Mapping[str, TensorKindSummary]
    gradients: tuple[GradientError, ...]
    missing: tuple[str, ...]
    bypassed: int
    differing: tuple[str, ...]
    resolution: GradientResolution
    guessed: tuple[str, ...]
    matmuls: RecomputedMatmuls
    packed: PackedRows
    self_test: tuple[LocatedFault, ...]
    reference: ActorReferenceFacts
    seconds: Mapping[str, float]
    others: tuple[OtherPath, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OtherPath:
    """The measurements with another of verl's actor classes."""

    path: str
    outcome: ActorMeasured | ProgramFailure | Unsupported


ACTOR_FORMAT = measurement_format(ActorMeasured, ProgramFailure, Unsupported, version=1)
