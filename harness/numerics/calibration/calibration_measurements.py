"""The record of a device's arithmetic, as `npu-matrix numerics calibrate` writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.cell_program.program_run import ProgramFailure, Unsupported
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.numerics.loss.loss_measurements import LossMeasured


@dataclass(frozen=True, kw_only=True)
class DeviceConstant:
    """One arithmetic constant of a device.

    measured: None if it is not finite. contract: the limit for fp32. holds: whether it is within the limit.
    """

    constant: str
    measured: float | None
    contract: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class DeviceConstants:
    """The output of the program that measures the constants."""

    device: DeviceFacts
    constants: tuple[DeviceConstant, ...]


@dataclass(frozen=True, kw_only=True)
class BudgetGroup:
    """The cases of one operation and one contract, and the shares of their tolerances that they use.

    outside: cases that failed. A budget above 1 means a defect, or a wrong constant in the contract.
    """

    group: str
    contract: str
    cases: int
    outside: int
    median_budget: float
    worst_budget: float
    worst_case: str


@dataclass(frozen=True, kw_only=True)
class RecordSchema:
    """Name and version of the record's format."""

    name: str = "npu-matrix.numerics-calibration"
    version: int = 1


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """The arithmetic of a device. state: how the loss battery ended; `groups` is empty unless it is
    `measured`."""

    schema: RecordSchema = field(default_factory=RecordSchema)
    device: DeviceFacts
    verl: str
    state: Literal["measured", "hung", "crashed", "unsupported"]
    constants: tuple[DeviceConstant, ...]
    groups: tuple[BudgetGroup, ...]


@dataclass(frozen=True, kw_only=True)
class CalibrationMeasured:
    """The loss battery as measured, and the record."""

    state: Literal["calibrated"] = "calibrated"
    loss: LossMeasured | ProgramFailure | Unsupported
    calibration: CalibrationRecord


CALIBRATION_FORMAT = measurement_format(CalibrationMeasured, version=1)
