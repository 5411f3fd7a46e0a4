"""The checks of vLLM with vllm-ascend, and of a device that nobody has measured yet."""

from __future__ import annotations

from harness.check import Check
from harness.rollout.contact.contact_checks import CONTACT_CHECKS
from harness.rollout.contact.hosts_check import HOSTS
from harness.rollout.generation.generation_checks import GENERATION_CHECKS
from harness.rollout.imports.import_checks import IMPORT_CHECKS

CHECKS: tuple[Check, ...] = (*CONTACT_CHECKS, HOSTS, *IMPORT_CHECKS, *GENERATION_CHECKS)
