"""Findings of the rule ENGINE-OPTION: options for the engine of the rollout, or for Megatron, that it lacks.

verl hands on what is in `engine_kwargs` and `override_transformer_config` without reading it. The engine has
more options than are known here, in other releases, and MindSpeed adds some to Megatron's: only a name that
is spelt almost like a known one is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, SettingChange
from harness.compat.lint.ruleset import EngineArguments, load_ruleset
from harness.compat.lint.setting_changes import misspelt_value, nearest_word
from harness.compat.lint.shell.values import ScriptValue

ENGINE_OPTION_RULE = "ENGINE-OPTION"
TRAINING_ENGINE = "megatron"
_OPTIONS = "actor_rollout_ref.rollout.engine_kwargs."


def engine_option_findings(job: JobSettings, composition: Composition) -> Iterator[LintFinding]:
    """Settings of the job that are misspelt options of its engine, or have a text that the option refuses."""
    engine = composition.value("actor_rollout_ref.rollout.name")
    every = load_ruleset().engine_arguments
    entries = [one for one in every if one.engine == engine]
    handed_on = {one.section: one for one in every if one.engine == TRAINING_ENGINE}
    for key, setting in job.overrides.items():
        section, _, name = key.rpartition(".")
        mapping = handed_on.get(section.rpartition(".")[2])
        if mapping is not None:
            yield from _findings(key, f"{mapping.section}.{name}", setting, mapping, composition, job)
        named, _, rest = key.removeprefix(_OPTIONS).partition(".")
        if not key.startswith(_OPTIONS) or named != engine or not rest:
            continue
        for entry in entries:
            yield from _findings(key, rest, setting, entry, composition, job)


def _findings(
    key: str,
    rest: str,
    setting: ScriptValue,
    entry: EngineArguments,
    composition: Composition,
    job: JobSettings,
) -> Iterator[LintFinding]:
    inside = f"{entry.section}." if entry.section else ""
    name = rest.removeprefix(inside).partition(".")[0].replace("-", "_")
    if not rest.startswith(inside):
        return
    near = nearest_word(name, entry.names) if name not in entry.names else ""
    value, choices = composition.value(key), entry.choices.get(name, ())
    problems: list[tuple[str, str, str, tuple[SettingChange, ...]]] = []
    if near:
        message = f"{name} looks like a misspelling of {near}, an option of {entry.engine}"
        why = f"verl hands on the options in engine_kwargs, and {entry.engine} stops at one that it lacks"
        if entry.engine == TRAINING_ENGINE:
            why = f"verl hands on {entry.section}, and stops at an option that Megatron lacks, or drops it"
        problems.append((message, why, f"write {key.replace(name, near)}", ()))
    if choices and isinstance(value, str) and UNKNOWN_VALUE not in value and not _is_one_of(value, choices):
        message = f"{value} is no {name} that {entry.engine} knows"
        why = f"{entry.engine} stops when it reads its configuration"
        changes = misspelt_value(setting, key, choices)
        problems.append((message, why, f"choose one of {', '.join(choices)}", changes))
    for message, why, fix, changes in problems:
        yield LintFinding.at(
            setting.where,
            rule=ENGINE_OPTION_RULE,
            severity="error",
            message=message,
            why=why,
            fix=fix,
            source=entry.source,
            recipe=job.name,
            changes=changes,
        )


def _is_one_of(value: str, choices: Sequence[str]) -> bool:
    return value.upper() in (choice.upper() for choice in choices)
