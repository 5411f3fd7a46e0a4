"""The measurements of the check `update`. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.cell_program.self_test import SelfTestFault
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.numerics.loss.verl_losses_source import InstalledLosses

MISSING = "it was not computed"
"""The detail of a quantity that was not recorded."""


@dataclass(frozen=True, kw_only=True)
class WrongQuantity:
    """A quantity outside of its interval. where: optimizer step and micro-batch. place: file, line and name
    of verl's function that computes it, "" if unknown."""

    quantity: str
    where: str
    detail: str
    place: str


@dataclass(frozen=True, kw_only=True)
class UpdateOutcome:
    """One case with one worker class. judged: number of compared arrays. wrong: in the order of computation.
    error: the exception that ended it. worst_budget: largest error divided by its tolerance."""

    case: str
    path: str
    judged: int
    wrong: tuple[WrongQuantity, ...]
    error: str
    worst_budget: float


@dataclass(frozen=True, kw_only=True)
class LocatedUpdateFault(SelfTestFault):
    """A fault of the self-test. found_in: the first wrong quantity."""

    path: str
    found_in: str


@dataclass(frozen=True, kw_only=True)
class UpdateDeviceRun:
    """What the program in the cell writes besides the records. source: what verl's source says."""

    device: DeviceFacts
    verl: str
    paths: tuple[str, ...]
    seconds: float
    source: InstalledLosses | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateMeasured:
    """All cases on one device. on_cpu: after a failure, how many cases are wrong on the CPU of the cell, too;
    None if that was not measured. known: whether this check is known to call this verl correctly.
    differences: what an unknown verl computes otherwise by its source. not_offered: which updates were not
    judged because this verl does not have them."""

    state: Literal["measured"] = "measured"
    verl: str
    device: DeviceFacts
    paths: tuple[str, ...]
    outcomes: tuple[UpdateOutcome, ...]
    self_test: tuple[LocatedUpdateFault, ...]
    on_cpu: int | None
    seconds: Mapping[str, float]
    known: bool = True
    differences: tuple[str, ...] = ()
    not_offered: tuple[str, ...] = ()


UPDATE_FORMAT = measurement_format(UpdateMeasured, ProgramFailure, Unsupported, version=1)
