"""Findings of the rule VALUE-TYPO: a text that looks like one that verl's code compares the setting with.

verl checks many settings only when a worker, a data loader or the rollout uses them. A value that its code
has nowhere, and that is spelt almost like one that it compares the setting with, is a misspelling. A value
that is like none of them is not reported: other packages may know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.compat.lint.hydra_compose import Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.setting_changes import misspelt_value, nearest_word

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigValue

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
        leaf, default = key.rpartition(".")[2], plain.value(key)
        if setting.unknown or _FREE.fullmatch(leaf):
            continue
        known = texts.of(leaf) | frozenset(one for one in _listed(default) if isinstance(one, str))
        words = [
            one for one in _listed(composition.value(key)) if isinstance(one, str) and _WORD.fullmatch(one)
        ]
        misspelt = ((one, nearest_word(one, known)) for one in words if one not in texts.words | known)
        value, near = next((pair for pair in misspelt if pair[1]), ("", ""))
        if not near:
            continue
        if near in texts.of(leaf):
            place = f"{configuration.place(*texts.places[leaf][near])} of {configuration.label}"
        else:
            place = f"the default in {program.folder}/{program.name}.yaml of {configuration.label}"
        others = ", ".join(sorted(known)[:8])
        yield LintFinding.at(
            setting.where,
            rule=TYPO_RULE,
            severity="warning",
            message=f"{value} in {key} looks like a misspelling of {near}",
            why=f"no text in this verl is {value}; it knows {others} ({place})",
            fix=f"write {near} in {key}",
            source=place,
            recipe=job.name,
            changes=misspelt_value(setting, key, known),
        )


def _listed(value: ConfigValue) -> list[ConfigValue]:
    """The elements of a list, or a value that is none."""
    return value if isinstance(value, list) else [value]
