"""Operators that an error names as having no reference on the simulated device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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
    """The operators that the text of an error says are not simulated; none where it says something else."""
    return sorted({match for pattern in _PATTERNS for match in pattern.findall(text)})


def judge_unsimulated(names: Sequence[str]) -> Judgement:
    """Neither pass nor fail: the simulation has no answer, which says nothing of the cell."""
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=tuple(f"not simulated: {name}" for name in names),
        remedies=("Run this cell on an NPU, or write the reference in harness/devices/sim/references.",),
    )


def judge_unsimulated_error(device: Mapping[str, Any], text: str) -> Judgement | None:
    """`lacking` of what an error names, on a simulated device; on a real one the error is the cell's."""
    names = unsimulated_operators(text) if device.get("simulated") else []
    return judge_unsimulated(names) if names else None
