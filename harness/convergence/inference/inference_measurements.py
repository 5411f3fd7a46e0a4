"""The measurements of the check `gpt-oss`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.cell_program.program_run import ProgramFailure
from harness.convergence.telemetry.training_records import StoredNumber
from harness.evidence import DeviceFacts
from harness.measurements import measurement_format


@dataclass(frozen=True, kw_only=True)
class InferenceMeasurements:
    """Logits of the same prompts on the device and on the CPU.

    answers, device_answers: token ids that greedy decoding chose, on the CPU and on the device. seconds: one
    forward pass on the device. matrix_products: consecutive matmuls from the embedding to a logit.
    """

    supported: Literal[True] = True
    finite: bool
    largest_difference: StoredNumber
    largest_logit: StoredNumber
    same_answers: bool
    answers: tuple[tuple[int, ...], ...] = ()
    device_answers: tuple[tuple[int, ...], ...] = ()
    seconds: float = 0.0
    matrix_products: int
    versions: Mapping[str, str]
    device: DeviceFacts


@dataclass(frozen=True, kw_only=True)
class UnsupportedInference:
    """This cell's transformers has no gpt-oss."""

    supported: Literal[False] = False
    why: str
    versions: Mapping[str, str]
    device: DeviceFacts


INFERENCE_FORMAT = measurement_format(InferenceMeasurements, UnsupportedInference, ProgramFailure, version=1)
