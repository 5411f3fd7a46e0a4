"""Findings of the rule SET-TWICE: an override that a later one of the same command replaces."""

from __future__ import annotations

from collections.abc import Iterator

from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import OVERRIDE
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.shell.values import ScriptValue

REPEATED_RULE = "SET-TWICE"


def repeated_settings(job: JobSettings) -> Iterator[LintFinding]:
    """Overrides without effect, each where it is written; those that are repeated as they are stay untold."""
    last: dict[str, ScriptValue] = {}
    for word in job.arguments:
        match = OVERRIDE.match(word.text)
        if match is None or match["prefix"] == "~" or not match["equals"]:
            continue
        key = match["key"]
        before, last[key] = last.get(key), word
        if before is None or before.text == word.text or before.where == word.where:
            continue
        yield LintFinding.at(
            before.where,
            rule=REPEATED_RULE,
            severity="note",
            message=f"`{before.text[:120]}` has no effect, because `{word.text[:120]}` follows",
            why=f"of overrides of one key, Hydra takes the last, which is in line {word.where.line}",
            fix=f"remove one of the two settings of {key}",
            source="Hydra's documentation, Extended Override Syntax",
            recipe=job.name,
        )
