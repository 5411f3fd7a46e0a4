"""Findings of the rule ENGINE-OPTION: options for the engine of the rollout, or for Megatron, that it lacks.

verl hands on what is in `engine_kwargs`, `override_transformer_config` and `mcore_kwargs` without reading it.
The engine has more options than are known here, in other releases: only a name that is spelt almost like a
known one is reported, and one that other releases of vllm-ascend read. The surface pack has the options of
each release of vLLM itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.knowledge.surface_pack import ReleaseSurface
from harness.compat.lint.engine_variables import vllm_version
from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, SettingChange, UndecidedRule
from harness.compat.lint.ruleset import VERSION_NAMES, EngineArguments, load_ruleset
from harness.compat.lint.setting_changes import misspelt_value, nearest_word
from harness.compat.lint.shell.values import ScriptValue
from harness.matrix.model.versions import parse_version

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigValue

ENGINE_OPTION_RULE = "ENGINE-OPTION"
TRAINING_ENGINE = "megatron"
#: The section with the options that MindSpeed adds to those of Megatron.
MINDSPEED = "mcore_kwargs"
_OPTIONS = "actor_rollout_ref.rollout.engine_kwargs."
_VLLM_FILES = (
    "vllm/engine/arg_utils.py",
    *(f"vllm/entrypoints/{path}.py" for path in ("openai/cli_args", "cli/serve", "utils", "cli/main")),
)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """What is wrong with an option."""

    message: str
    why: str
    fix: str
    severity: str = "error"
    changes: tuple[SettingChange, ...] = ()


def engine_option_findings(
    job: JobSettings,
    composition: Composition,
    versions: Mapping[str, str],
    configuration: VerlConfiguration,
) -> Iterator[LintFinding]:
    """Settings of the job that are misspelt options of its engine, or have a text that the option refuses.

    versions: axis -> version; releases of vllm-ascend differ in the options that they read.
    """
    engine = composition.value("actor_rollout_ref.rollout.name")
    every = load_ruleset().engine_arguments
    entries = [one for one in every if one.engine == engine]
    handed_on = {one.section: one for one in every if one.engine == TRAINING_ENGINE}
    for key, setting in job.overrides.items():
        section, _, name = key.rpartition(".")
        mapping = handed_on.get(section.rpartition(".")[2])
        if mapping is not None:
            yield from _findings(
                key, f"{mapping.section}.{name}", setting, mapping, composition, job, versions, configuration
            )
        named, _, rest = key.removeprefix(_OPTIONS).partition(".")
        if not key.startswith(_OPTIONS) or named != engine or not rest:
            continue
        for entry in entries:
            yield from _findings(key, rest, setting, entry, composition, job, versions, configuration)


def unread_option_sources(
    job: JobSettings, composition: Composition, versions: Mapping[str, str]
) -> Iterator[UndecidedRule]:
    """The rule, if a job sets options of vLLM, and the options of its releases are not known."""
    engine = composition.value("actor_rollout_ref.rollout.name")
    given = [key for key in job.overrides if key.startswith(f"{_OPTIONS}{engine}.")]
    entries = [one for one in load_ruleset().engine_arguments if one.engine == engine]
    if engine != "vllm" or not given:
        return
    unknown = []
    if _release(versions) is None:
        version = vllm_version(versions)
        unknown.append(f"the options of vllm {version}" if version else "vllm")
    ascend = versions.get("vllm_ascend", "")
    sections = tuple(f"{_OPTIONS}{engine}.{one.section}" for one in entries if one.read_in)
    if sections and any(key.startswith(sections) for key in given) and (not ascend or "@" in ascend):
        unknown.append(f"the options of vllm-ascend {ascend}" if ascend else "vllm_ascend")
    if unknown:
        yield UndecidedRule(rule=ENGINE_OPTION_RULE, unknown=tuple(unknown), recipe=job.name)


def _release(versions: Mapping[str, str]) -> ReleaseSurface | None:
    """The release of vLLM of a job; None if its options are not known."""
    pack, version = shipped_pack().pack, vllm_version(versions)
    release = pack.release("vllm", version) if pack is not None and version else None
    return release if release is not None and _VLLM_FILES[0] in release.names() else None


def _findings(
    key: str,
    rest: str,
    setting: ScriptValue,
    entry: EngineArguments,
    composition: Composition,
    job: JobSettings,
    versions: Mapping[str, str],
    configuration: VerlConfiguration,
) -> Iterator[LintFinding]:
    inside = f"{entry.section}." if entry.section else ""
    name = rest.removeprefix(inside).partition(".")[0].replace("-", "_")
    if not rest.startswith(inside):
        return
    problems = [
        _misspelt(key, name, entry),
        _refused_text(key, name, entry, composition.value(key), setting),
        _unread(name, entry, versions.get("vllm_ascend", "")),
        _lost(name, entry, composition.value(key), versions, configuration),
    ]
    for problem in filter(None, problems):
        yield LintFinding.at(
            setting.where,
            rule=ENGINE_OPTION_RULE,
            severity=problem.severity,
            message=problem.message,
            why=problem.why,
            fix=problem.fix,
            source=entry.source,
            recipe=job.name,
            changes=problem.changes,
        )


def _misspelt(key: str, name: str, entry: EngineArguments) -> _Problem | None:
    known = _names(entry)
    near = nearest_word(name, known) if name not in known else ""
    if not near:
        return None
    message = f"{name} looks like a misspelling of {near}, an option of {entry.engine}"
    why = f"verl hands on the options in engine_kwargs, and {entry.engine} stops at one that it lacks"
    severity = "error"
    if entry.engine == TRAINING_ENGINE:
        why = f"verl hands on {entry.section}, and stops at an option that Megatron lacks, or drops it"
    elif entry.read_in:
        message = f"{name} looks like a misspelling of {near}, an option of vllm-ascend"
        why, severity = "vllm-ascend reads these options by name, and no other", "warning"
    return _Problem(message=message, why=why, severity=severity, fix=f"write {key.replace(name, near)}")


def _names(entry: EngineArguments) -> frozenset[str]:
    """The options of a section, with those of the sections whose options it has too."""
    return frozenset((*entry.names, *(name for one in _others(entry) for name in one.names)))


def _others(entry: EngineArguments) -> Iterator[EngineArguments]:
    """The sections whose options this one has too."""
    every = load_ruleset().engine_arguments
    return (one for one in every if one.engine == entry.engine and one.section in entry.also)


def _refused_text(
    key: str, name: str, entry: EngineArguments, value: ConfigValue, setting: ScriptValue
) -> _Problem | None:
    owner = next((one for one in (entry, *_others(entry)) if name in one.choices), entry)
    choices = owner.choices.get(name, ())
    if (
        not choices
        or not isinstance(value, str)
        or UNKNOWN_VALUE in value
        or value.upper() in (choice.upper() for choice in choices)
    ):
        return None
    is_mindspeed = owner.section == MINDSPEED
    return _Problem(
        message=f"{value} is no {name} that {'MindSpeed' if is_mindspeed else entry.engine} knows",
        why="MindSpeed compares the option with these texts, and takes another one for none of them"
        if is_mindspeed
        else f"{entry.engine} stops when it reads its configuration",
        fix=f"choose one of {', '.join(choices)}",
        severity="warning" if is_mindspeed else "error",
        changes=misspelt_value(setting, key, choices),
    )


def _unread(name: str, entry: EngineArguments, version: str) -> _Problem | None:
    """An option that other releases of vllm-ascend read, and not this one."""
    if name not in entry.read_in or not version or "@" in version:
        return None
    if entry.read_in[name].contains(parse_version(VERSION_NAMES["vllm_ascend"], version)):
        return None
    return _Problem(
        message=f"vllm-ascend {version} has no option {name}",
        why=f"it reads the options in {entry.section} by name; the releases that read this one are "
        f"{entry.read_in[name]}",
        fix="remove it, or set what this release has for it",
        severity="warning",
    )


def _lost(
    name: str,
    entry: EngineArguments,
    value: ConfigValue,
    versions: Mapping[str, str],
    configuration: VerlConfiguration,
) -> _Problem | None:
    """An option of vLLM's own that the release of the job does not have.

    What verl's own code names can be an option that verl reads, and does not hand on.
    """
    release, known = _release(versions), _names(entry)
    # verl leaves out options without a value, and switches that are off.
    if release is None or value in (None, False) or (name not in known and nearest_word(name, known)):
        return None
    if entry.engine != "vllm" or entry.section:
        return None
    if _states(release, name) or name in configuration.code_words:
        return None
    having = releases_with_option(name)
    return _Problem(
        message=f"{release.label} has no option {name}",
        why="verl passes the options in engine_kwargs to vLLM, which stops with: unrecognized arguments; "
        + (
            f"the releases with this option are {having[0]} to {having[-1]}"
            if having
            else "no release has it"
        ),
        fix="remove it, or set what this release has for it",
    )


def releases_with_option(name: str) -> Sequence[str]:
    """The releases of vLLM in whose options a name is, oldest first."""
    pack = shipped_pack().pack
    known = [one.version for one in pack.releases("vllm") if not one.unread] if pack is not None else []
    surfaces = ((version, pack.release("vllm", version)) for version in known) if pack is not None else ()
    return [version for version, release in surfaces if release is not None and _states(release, name)]


def _states(release: ReleaseSurface, name: str) -> bool:
    """Whether the files in which vLLM declares its options contain a word."""
    word = re.compile(rb"\b%s\b" % name.encode())
    return any(word.search(release.read(path)) for path in _VLLM_FILES)
