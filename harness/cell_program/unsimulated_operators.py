"""Recognizes errors about operators that the simulated device does not implement."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.evidence import DeviceFacts
from harness.outcome import Judgement, Status

_NAME = r"(\w+(?:::?\w+)*(?:\.\w+)*)"
_PATTERNS = (
    # These patterns are not anchored, because a worker's error may be quoted within another message.
    re.compile(rf"not simulated: {_NAME}"),
    re.compile(rf"the simulated device does not compute {_NAME}"),
    re.compile(r"(aclnn\w+) (?:or \w+GetWorkspaceSize not in|not found)"),
    re.compile(r"(\w+Operation) CreateOperation failed"),
    # An operator of the older interface, which the simulated runtime has none of: it returns 107000.
    re.compile(r"OPS function error: (\w+), error code is 107000"),
    # torch_npu looked for a kernel of CANN, found none, and takes CANN for too old (op_plugin/ops/opapi).
    re.compile(r"not supported in this CANN version, (aclnn\w+) is not"),
    re.compile(r"of weight in (\w+) is FRACTAL_NZ, current CANN version"),
    re.compile(r"(current CANN version do not support this api)", re.IGNORECASE),
)


def unsimulated_operators(text: str) -> list[str]:
    """The operators that an error message reports as not simulated; empty for any other error."""
    return sorted({match for pattern in _PATTERNS for match in pattern.findall(text)})


def judge_unsimulated(operators: Sequence[str]) -> Judgement:
    """Inconclusive: an operator that the simulated device lacks says nothing about the cell."""
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=tuple(f"not simulated: {operator}" for operator in operators),
        remedies=("Run this cell on an NPU, or write the reference in harness/devices/sim/references.",),
    )


def judge_unsimulated_error(device: DeviceFacts, text: str) -> Judgement | None:
    """Inconclusive when the error is about operators that the simulated device lacks, else None."""
    operators = unsimulated_operators(text) if device.simulated else []
    return judge_unsimulated(operators) if operators else None
