"""The checks of this room."""

from __future__ import annotations

from harness.check import Check
from harness.rollout.generation_checks import GENERATION_CHECKS

CHECKS: tuple[Check, ...] = (*GENERATION_CHECKS,)
