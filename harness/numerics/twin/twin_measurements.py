"""The measurements of the check `twin` and the reports of its programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.cell_program.self_test import SelfTestFault
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.numerics.actor.actor_measurements import Errors


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The number of steps in which rounding cannot change a decision (a sampled token, a clip).

    horizon: the number of these steps. slack: for each step, the smallest distance of a decision from its
        boundary divided by the largest rounding error there. limited_by: the kind of decision that limits the
        horizon, `tokens` or `clip`; "" if all steps are within it.
    """

    horizon: int
    slack: tuple[float, ...]
    limited_by: str


@dataclass(frozen=True, kw_only=True)
class RoundingGrowth:
    """noise: the relative rounding error of all parameters after each step. growth: its factor per step."""

    noise: tuple[float, ...]
    growth: float | None


@dataclass(frozen=True, kw_only=True)
class TwinReferenceFacts:
    """How the reference was computed. samples: number of perturbed runs. contract: name of the precision
    contract."""

    verl: str
    torch: str
    samples: int
    contract: str
    horizon: Horizon
    rounding: RoundingGrowth
    unbounded_operators: tuple[str, ...]
    frameworks_loaded: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TwinReference:
    """The reference without its tensors.

    labels: all tensors in the order of computation, `step/kind/call/name/part`. strict: tolerances without
        the guesses for unbounded operators, empty if there are none.
    """

    facts: TwinReferenceFacts
    labels: tuple[str, ...]
    tolerances: Mapping[str, float]
    strict: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TwinErrors:
    """One run on the device compared with the reference.

    missing: labels that it did not compute. tokens: for each step, the number of responses with a differing
        token.
    """

    errors: Errors
    missing: tuple[str, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TwinDeviceRun:
    """What the program on the device writes. steps: the number of steps that were run. faults: by injected
    fault."""

    device: DeviceFacts
    verl: str
    path: str
    steps: int
    twin: TwinErrors
    faults: Mapping[str, TwinErrors]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TwinDivergence:
    """A number outside of its tolerance. step: from 1. budget: error divided by tolerance, None if it is not
    finite."""

    step: int
    kind: str
    name: str
    part: str
    budget: float | None

    @property
    def title(self) -> str:
        """In words, for example `the gradient of lm_head.weight in step 3`."""
        part = f"the {self.part} of " if self.part else ""
        what = {"gradient": "the gradient of ", "parameter": "the updated "}.get(self.kind, part)
        return f"{what}{self.name} in step {self.step}"


@dataclass(frozen=True, kw_only=True)
class TwinInjectedFault(SelfTestFault):
    """A fault of the self-test, where it was injected, and the first number outside of its tolerance."""

    place: str
    step: int
    first: TwinDivergence | None


@dataclass(frozen=True, kw_only=True)
class TwinMeasured:
    """A twin run compared with its reference.

    path: verl's actor class. steps: number of compared steps; planned_steps: number of steps to compare.
        worst_by_step: the largest error divided by tolerance in each step, None if a number is missing or not
        finite. bypassed: number of modules that a fused kernel replaces on the device. guessed: tensors that
        are within their tolerance only because of a guess for an operator without an error bound.
    """

    state: Literal["measured"] = "measured"
    verl: str
    path: str
    device: DeviceFacts
    steps: int
    planned_steps: int
    worst_by_step: tuple[float | None, ...]
    worst_budget: float | None
    tensors: int
    bypassed: int
    diverged: int
    first: TwinDivergence | None
    named: tuple[TwinDivergence, ...]
    guessed: tuple[str, ...]
    self_test: tuple[TwinInjectedFault, ...]
    reference: TwinReferenceFacts
    seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TwinRefused:
    """A twin run with settings that make a comparison impossible."""

    state: Literal["refused"] = "refused"
    why: str


TWIN_FORMAT = measurement_format(TwinMeasured, TwinRefused, ProgramFailure, Unsupported, version=1)
