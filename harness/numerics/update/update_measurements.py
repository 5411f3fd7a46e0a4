"""The measurements of the check `update`. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.cell_program.self_test import SelfTestFault
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format


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
    """What the program in the cell writes besides the records."""

    device: DeviceFacts
    verl: str
    paths: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class UpdateMeasured:
    """All cases on one device. on_cpu: after a failure, how many cases are wrong on the CPU of the cell, too;
    None if that was not measured."""

    state: Literal["measured"] = "measured"
    verl: str
    device: DeviceFacts
    paths: tuple[str, ...]
    outcomes: tuple[UpdateOutcome, ...]
    self_test: tuple[LocatedUpdateFault, ...]
    on_cpu: int | None
    seconds: Mapping[str, float]


UPDATE_FORMAT = measurement_format(UpdateMeasured, ProgramFailure, Unsupported, version=1)
