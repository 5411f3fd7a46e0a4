"""The checks of vLLM with vllm-ascend."""

from __future__ import annotations

from harness.check import Check
from harness.rollout.generation.generation_checks import GENERATION_CHECKS
from harness.rollout.imports.import_checks import IMPORT_CHECKS

CHECKS: tuple[Check, ...] = (*IMPORT_CHECKS, *GENERATION_CHECKS)
