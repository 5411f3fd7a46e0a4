"""Findings of the rule REGISTRY about closed sets: a text that verl's code raises an error for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.key_remedies import keys_of
from harness.compat.lint.lint_measurements import LintFinding
from harness.compat.lint.registry_findings import REGISTRY_RULE
from harness.compat.lint.setting_changes import misspelt_value

#: Parts of keys whose values verl does not compare itself.
_HANDED_ON = re.compile(r"kwargs|override|env_vars|runtime_env|custom|path|hydra|template|_name$")


def closed_set_findings(
    job: JobSettings, configuration: VerlConfiguration, program: Program, composition: Composition
) -> Iterator[LintFinding]:
    """Settings of the job with a text that is in no closed set of their name."""
    if not program.module.startswith("verl/") or composition.incomplete:
        return
    plain = configuration.defaults(program)
    for key, setting in job.overrides.items():
        value, name = composition.value(key), key.rpartition(".")[2]
        is_text = isinstance(value, str) and value and UNKNOWN_VALUE not in value and "${" not in value
        if not is_text or not plain.has(key) or _HANDED_ON.search(key):
            continue
        if value in configuration.compared_texts.of(name):
            continue
        sets = configuration.closed_sets.get(name, ())
        known = frozenset(text for one in sets for text in one.texts)
        if not known or str(value).lower() in {text.lower() for text in known}:
            continue
        if not _are_of_settings(known, name, plain, composition, key):
            continue
        near = difflib.get_close_matches(str(value), sorted(known), n=1)
        every = ", ".join(sorted(known))
        yield LintFinding.at(
            setting.where,
            rule=REGISTRY_RULE,
            severity="warning",
            message=f"{key}={value} is no name that this verl has",
            why=f"verl stops with an error at {sets[0].place}; {configuration.label} has {every}",
            fix=f"set {key}={near[0]}" if near else f"choose one of {every}",
            source=f"{sets[0].place} of {configuration.label}",
            recipe=job.name,
            changes=misspelt_value(setting, key, known),
        )


def _are_of_settings(
    known: frozenset[str], name: str, plain: Composition, composition: Composition, key: str
) -> bool:
    """Whether the set is of the settings with this name: each of them has a text of the set, or none."""
    same = [one for one in keys_of(plain.values) if one.rpartition(".")[2] == name]
    others = [plain.value(one) for one in same] + [composition.value(one) for one in same if one != key]
    texts = [one for one in others if isinstance(one, str) and "${" not in one and UNKNOWN_VALUE not in one]
    return all(text in known for text in texts) and (bool(texts) or "_" in name)
