"""The rules that rest on the composed configuration of a job, and are not decided without it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.compat.lint.engine_findings import ENGINE_RULE
from harness.compat.lint.engine_options import ENGINE_OPTION_RULE
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import CONFIG_RULE, UndecidedRule
from harness.compat.lint.missing_files import MISSING_FILE_RULE
from harness.compat.lint.program_findings import PROGRAM_RULE
from harness.compat.lint.registry_findings import REGISTRY_RULE
from harness.compat.lint.typo_findings import TYPO_RULE, UNKNOWN_RULE
from harness.compat.lint.unread_settings import UNREAD_RULE

PROGRAM_MISSING = "NO-PROGRAM"
TYPE_RULE = "CONFIG-TYPE"
#: The rules on settings, by what a composition tells of them.
ON_SETTINGS = (
    CONFIG_RULE,
    TYPE_RULE,
    MISSING_FILE_RULE,
    REGISTRY_RULE,
    TYPO_RULE,
    UNKNOWN_RULE,
    ENGINE_OPTION_RULE,
    PROGRAM_RULE,
    ENGINE_RULE,
    UNREAD_RULE,
)


def undecided_settings(job: JobSettings, unknown: str, *others: str) -> Iterator[UndecidedRule]:
    """Every rule on the settings of a job, and the rules `others`, with what is not known."""
    for rule in (*ON_SETTINGS, *others):
        yield UndecidedRule(rule=rule, unknown=(unknown,), recipe=job.name)
