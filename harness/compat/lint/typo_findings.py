"""Findings about texts that verl's code compares a setting with: VALUE-TYPO and VALUE-UNKNOWN.

verl checks many settings only when a worker, a data loader or the rollout uses them. A value that its code
has nowhere, and that is spelt almost like one that it compares the setting with, is a misspelling. One that
is like none of them is reported if verl itself chooses by this setting: the code compares it with several
texts, of which one is the default. Otherwise other packages may know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.compat.lint.hydra_compose import Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.setting_changes import misspelt_value, nearest_word

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigValue

TYPO_RULE = "VALUE-TYPO"
UNKNOWN_RULE = "VALUE-UNKNOWN"
#: With how many texts the code compares a setting by which it chooses.
LEAST_KNOWN = 2
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
            yield from _unknown(job, key, words, default, configuration)
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


def _unknown(
    job: JobSettings, key: str, words: Sequence[str], default: ConfigValue, configuration: VerlConfiguration
) -> Iterator[LintFinding]:
    """A value that verl's code has nowhere, of a setting by which that code chooses."""
    texts, leaf = configuration.compared_texts, key.rpartition(".")[2]
    known = texts.of(leaf)
    value = next((one for one in words if one not in texts.words), "")
    if not value or len(known) < LEAST_KNOWN or default not in known:
        return
    place = f"{configuration.place(*texts.places[leaf][str(default)])} of {configuration.label}"
    yield LintFinding.at(
        job.overrides[key].where,
        rule=UNKNOWN_RULE,
        severity="warning",
        message=f"{value} is no value of {key} that this verl knows",
        why=f"its code chooses by this setting, and knows {', '.join(sorted(known)[:8])} ({place})",
        fix=f"set {key} to one of these values",
        source=place,
        recipe=job.name,
    )


def _listed(value: ConfigValue) -> list[ConfigValue]:
    """The elements of a list, or a value that is none."""
    return value if isinstance(value, list) else [value]
