"""The measurements of the checks `device-sample` and `collectives`, and the reports of their programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.rollout.operators.operator_result import OperatorMeasurement


@dataclass(frozen=True, kw_only=True)
class SampledOperators:
    """The operator battery in one format of numbers, such as `float32`."""

    dtype: str
    operators: tuple[OperatorMeasurement, ...]


@dataclass(frozen=True, kw_only=True)
class SampleMeasured:
    """A sample of a device's arithmetic: its constants, and operators compared with float64."""

    state: Literal["sampled"] = "sampled"
    device: DeviceFacts
    constants: tuple[DeviceConstant, ...]
    operators: tuple[SampledOperators, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CollectiveResult:
    """One collective operation. wrong: how its result differs from the exact one, "" if it is exact."""

    name: str
    wrong: str


@dataclass(frozen=True, kw_only=True)
class CollectivesMeasured:
    """Collective operations between `ranks` processes, one card each.

    devices: the cards that the ranks used. gigabytes_per_second: of the all-reduce of a large tensor, as each
    rank sends and receives it; it is recorded, not judged.
    """

    state: Literal["measured"] = "measured"
    device: DeviceFacts
    ranks: int
    devices: tuple[str, ...]
    results: tuple[CollectiveResult, ...]
    gigabytes_per_second: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class HostRanks:
    """The ranks of one host. devices: the card of each of them, as torch names it."""

    address: str
    devices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class JointTraining:
    """A training with DistributedDataParallel. wrong: how its weights differ from the reference, or ""."""

    steps: int
    wrong: str


@dataclass(frozen=True, kw_only=True)
class HostsMeasured:
    """Collective operations and training steps between the cards of several hosts, which torchrun started."""

    state: Literal["measured"] = "measured"
    device: DeviceFacts
    hosts: tuple[HostRanks, ...]
    results: tuple[CollectiveResult, ...]
    training: JointTraining
    seconds: float


SAMPLE_FORMAT = measurement_format(SampleMeasured, ProgramFailure, version=1)
COLLECTIVES_FORMAT = measurement_format(CollectivesMeasured, ProgramFailure, version=1)
HOSTS_FORMAT = measurement_format(HostsMeasured, ProgramFailure, version=1)
