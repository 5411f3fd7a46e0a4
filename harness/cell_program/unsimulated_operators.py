"""Recognizes errors about operators that the simulated device does not implement."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.evidence import DeviceFacts
from harness.outcome import Judgement, Status

_NAME = r"(\w+(?:::?\w+)*(?:\.\w+)*)"
_PATTERNS = (
    # A worker's error comes quoted, in the middle of a sentence.
    re.compile(rf"not simulated: {_NAME}"),
    re.compile(rf"the simulated device does not compute {_NAME}"),
    re.compile(r"(aclnn\w+) or \w+GetWorkspaceSize not in"),
    re.compile(r"(\w+Operation) CreateOperation failed"),
)


def unsimulated_operators(text: str) -> list[str]:
    """The operators that an error's text reports as not simulated; none where it is another error."""
    return sorted({match for pattern in _PATTERNS for match in pattern.findall(text)})


def judge_unsimulated(operators: Sequence[str]) -> Judgement:
    """Inconclusive: that the simulated device lacks operators says nothing about the cell."""
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=tuple(f"not simulated: {operator}" for operator in operators),
        remedies=("Run this cell on an NPU, or write the reference in harness/devices/sim/references.",),
    )


def judge_unsimulated_error(device: DeviceFacts, text: str) -> Judgement | None:
    """Inconclusive when an error on a simulated device is about operators it lacks, else None."""
    operators = unsimulated_operators(text) if device.simulated else []
    return judge_unsimulated(operators) if operators else None
