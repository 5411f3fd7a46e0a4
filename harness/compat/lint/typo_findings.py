"""Findings of the rule VALUE-TYPO: a text that looks like one that verl's code compares the setting with.

verl checks many settings only when a worker, a data loader or the rollout uses them. A value that its code
has nowhere, and that is spelt almost like one that it compares the setting with, is a misspelling. A value
that is like none of them is not reported: other packages may know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.compat.lint.hydra_compose import Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.setting_changes import misspelt_value, nearest_word

TYPO_RULE = "VALUE-TYPO"
_WORD = re.compile(r"[A-Za-z][\w-]{2,40}")
#: Settings whose values are names that users choose.
_FREE = re.compile(r"(?:.*_)?(?:name|names|path|paths|key|keys|dir|project|entity|tags?|version|files?|cls)")


def typo_findings(
    job: JobSettings, configuration: VerlConfiguration, program: Program, composition: Composition
) -> Iterator[LintFinding]:
    """Settings of the job whose value is almost a text that this verl knows for them."""
    plain, texts = configuration.defaults(program), configuration.compared_texts
    for key, setting in job.overrides.items():
        value, leaf = composition.value(key), key.rpartition(".")[2]
        if setting.unknown or not isinstance(value, str) or not _WORD.fullmatch(value):
            continue
        if _FREE.fullmatch(leaf) or value == plain.value(key) or value in texts.words:
            continue
        near = nearest_word(value, texts.of(leaf))
        if not near:
            continue
        path, offset = texts.places[leaf][near]
        place = f"{configuration.place(path, offset)} of {configuration.label}"
        others = ", ".join(sorted(texts.of(leaf))[:8])
        yield LintFinding(
            rule=TYPO_RULE,
            severity="warning",
            file=str(setting.where.file),
            line=setting.where.line,
            column=setting.where.column,
            message=f"{key}={value} looks like a misspelling of {near}",
            why=f"no text in this verl is {value}; its code compares {leaf} with {others} ({place})",
            fix=f"set {key}={near}",
            source=place,
            recipe=job.name,
            changes=misspelt_value(setting, key, texts.of(leaf)),
        )
