"""The checks of this room."""

from __future__ import annotations

from harness.check import Check

CHECKS: tuple[Check, ...] = ()
