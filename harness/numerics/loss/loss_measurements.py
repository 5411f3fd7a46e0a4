"""The measurements of the check `loss` and the reports of its programs. Imports the standard library only."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.cell_program.self_test import SelfTestFault
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.numerics.loss.verl_losses_source import InstalledLosses

REQUIRED = "required"
ROBUSTNESS = "robustness"
LOST = "lost: "
"""How the reason of a case starts that the installed verl does not offer although its release has it."""
UNCALLABLE = "cannot be called as this check does, "
"""How the reason of a case starts whose exception was raised by the check's own call, not within verl."""


class LossStatus(str, enum.Enum):
    """Status of one case. Ill-posed is neither right nor wrong: the format is too coarse for this case."""

    PASS = "pass"  # noqa: S105 - a status, not a credential
    FAIL = "fail"
    ILL_POSED = "ill-posed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of an installed package, identified by its content."""

    file: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class LossProgramFacts:
    """What the in-cell program reports besides the results.

    verl: the installed version. core_algos: the file with its losses. capabilities: the functions and options
        that it offers. source: what its source says. seconds: by stage.
    """

    device: DeviceFacts
    python: str
    numpy: str
    verl: str
    core_algos: SourceFile
    capabilities: tuple[str, ...]
    seconds: Mapping[str, float]
    source: InstalledLosses | None = None


@dataclass(frozen=True, kw_only=True)
class LossReferenceFacts:
    """What the reference process reports. frameworks_loaded: those packages that must not be imported, but
    were."""

    python: str
    numpy: str
    frameworks_loaded: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LossCaseOutcome:
    """The judged result of one case.

    kind: the operation, for example `policy`. budget: the largest error divided by its tolerance. scale: the
        component of the gradient along the reference gradient, relative to it: 1 if correct, 2 if doubled,
        None without a gradient.
    """

    name: str
    kind: str
    severity: str
    status: LossStatus
    reasons: tuple[str, ...]
    budget: float
    scale: float | None

    @property
    def is_required(self) -> bool:
        """Whether the status of the check depends on this case."""
        return self.severity == REQUIRED


@dataclass(frozen=True, kw_only=True)
class LossFinding:
    """A deviation that does not fail the check, with the cases in which it occurs.

    kind: `objective`, `capability` or `robustness`.
    """

    id: str
    kind: str
    what: str
    source: str
    cases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LossInjectedFault(SelfTestFault):
    """A fault of the self-test, with the cases that detected and missed it and the scale of the gradient in
    each."""

    caught_in: tuple[str, ...]
    missed_in: tuple[str, ...]
    scale: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class LossMeasured:
    """The battery, evaluated in the cell and compared with the reference.

    verl: the release whose objective was expected. counts: number of required cases by status. worst_budget:
        the largest budget of the required cases that passed. seconds: by stage.
    """

    state: Literal["measured"] = "measured"
    seed: int
    verl: str
    cases: tuple[LossCaseOutcome, ...]
    counts: Mapping[str, int]
    findings: tuple[LossFinding, ...]
    worst_budget: float
    self_test: tuple[LossInjectedFault, ...]
    device: DeviceFacts
    core_algos: SourceFile
    capabilities: tuple[str, ...]
    reference: LossReferenceFacts
    seconds: Mapping[str, float]


LOSS_FORMAT = measurement_format(LossMeasured, ProgramFailure, Unsupported, version=1)
