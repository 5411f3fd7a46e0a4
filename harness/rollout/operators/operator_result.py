"""The measurements of the operator test battery. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LARGEST_STORED = 1e9
"""Replaces infinity, which JSON does not have."""


@dataclass(frozen=True, kw_only=True)
class OperatorMeasurement:
    """One operator of the test battery, compared with its plain formula.

    state: `absent` if the cell has no such operator. budget: error in units of the tolerance, above 1 is
    wrong. message: the error that it raised. group: the group of engines in whose process it ran.
    """

    case: str
    operator: str
    family: str
    state: Literal["measured", "absent", "raised"]
    budget: float = 0.0
    message: str = ""
    group: str = ""
