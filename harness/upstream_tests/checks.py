"""The checks of upstreams' own test suites."""

from __future__ import annotations

from harness.check import Check
from harness.upstream_tests.suite_check import SUITE_CHECKS

CHECKS: tuple[Check, ...] = SUITE_CHECKS
