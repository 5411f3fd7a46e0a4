"""Operators that an error names as having no reference on the simulated device."""

from __future__ import annotations

import re

_PATTERNS = (
    re.compile(r"not simulated: (\S+)"),
    re.compile(r"the simulated device does not compute (\S+)"),
    re.compile(r"(aclnn\w+) or \w+GetWorkspaceSize not in"),
    re.compile(r"(\w+Operation) CreateOperation failed"),
)


def not_simulated(text: str) -> list[str]:
    """The operators that the text of an error says are not simulated; none where it says something else."""
    return sorted({match for pattern in _PATTERNS for match in pattern.findall(text)})
