"""Findings about overrides that are torn: from their value by a space, from their program by a line end."""

from __future__ import annotations

from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import MISSING_VALUE_RULE, LintFinding
from harness.compat.lint.setting_changes import joined_words


def torn_override_findings(job: JobSettings) -> list[LintFinding]:
    """Findings of the rule TORN-OVERRIDE."""
    return [*_missing_values(job), *_cut_off(job)]


def _missing_values(job: JobSettings) -> list[LintFinding]:
    """Keys that a space separates from their value."""
    return [
        LintFinding.at(
            setting.where,
            rule=MISSING_VALUE_RULE,
            severity="error",
            message=f"`{key}=` has no value, because a space follows the equals sign",
            why="Hydra reads the value as another override and stops",
            fix=f"remove the space after `{key}=`",
            source="Hydra's override grammar; test_grpo_gptoss_20b_fsdp_A2.sh of Ascend/MindSpeed-RL",
            recipe=job.name,
            changes=joined_words(setting, key),
        )
        for key, setting in job.missing_values.items()
    ]


def _cut_off(job: JobSettings) -> list[LintFinding]:
    """Overrides that bash does not pass to the program."""
    return [
        LintFinding.at(
            setting.where,
            rule=MISSING_VALUE_RULE,
            severity="error",
            message=f"`{setting.text}` is not passed to {job.entry}: bash runs this line as another command",
            why="the line before it does not end with a backslash, is a comment, or has an & without quotes: "
            "each of them ends the command",
            fix="end the line before it with a backslash, move comments before the command, and quote an &",
            source="the manual of bash, sections Escape Character and Comments",
            recipe=job.name,
        )
        for setting in job.cut_off[:1]
    ]
