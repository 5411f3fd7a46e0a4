"""Findings about a job's overrides: what Hydra refuses, and values of the wrong type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.compat.lint.additional_options import (
    ADDITIONAL,
    GivenSections,
    additional_findings,
    section_findings,
)
from harness.compat.lint.closed_set_findings import closed_set_findings
from harness.compat.lint.engine_findings import unread_ascend
from harness.compat.lint.engine_options import (
    ENGINE_OPTION_RULE,
    engine_option_findings,
    unread_option_sources,
)
from harness.compat.lint.hydra_compose import (
    Composition,
    Program,
    RefusedOverride,
    VerlConfiguration,
)
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.key_remedies import key_remedy, keys_of
from harness.compat.lint.lint_measurements import (
    CONFIG_RULE,
    LintFinding,
    SettingChange,
    UndecidedRule,
)
from harness.compat.lint.missing_files import missing_file_findings
from harness.compat.lint.program_findings import program_findings
from harness.compat.lint.registry_findings import REGISTRY_RULE, registry_findings
from harness.compat.lint.serving.verified_options import ARGUMENT
from harness.compat.lint.setting_changes import key_change, misspelt_value, value_change, without_plus
from harness.compat.lint.shell.values import ScriptValue
from harness.compat.lint.typo_findings import typo_findings
from harness.compat.lint.uncomposed import PROGRAM_MISSING, TYPE_RULE, undecided_settings
from harness.compat.lint.unread_settings import UNREAD_RULE, unread_findings
from harness.errors import Location

#: Settings that verl passes where only whole numbers can be, such as the batch size of a data loader.
_COUNT = re.compile(
    r".*\b(?:\w*batch_size(?:_per_gpu)?|max_\w+_length|nnodes|n_gpus_per_node|\w*epochs|\w+_parallel_size)"
)
#: The options that verl hands on to vLLM.
VLLM_OPTIONS = "actor_rollout_ref.rollout.engine_kwargs.vllm."
#: A value that stands for another key; what Hydra adds of the process is not in a composition.
_KEY_OF_CONFIGURATION = re.compile(r"(?<!\\)\$\{(?!hydra\.)([A-Za-z_]\w*(?:\.\w+)+)\}")
#: The start of a finding about an option that vLLM's parser refuses.
REFUSED = f"vllm stops: {ARGUMENT} --"
TRUTH_VALUES = ("True", "False")


def compose_job(
    job: JobSettings, configuration: VerlConfiguration | None
) -> tuple[Program, Composition] | None:
    """The job's program and its composed configuration; None if this verl or its program is not known."""
    program = configuration.program(job.entry, job.options) if configuration else None
    if configuration is None or program is None:
        return None
    return program, configuration.compose(program, job.arguments)


def config_findings(
    job: JobSettings,
    versions: Mapping[str, str],
    configuration: VerlConfiguration | None,
    composed: tuple[Program, Composition] | None,
) -> Iterator[LintFinding | UndecidedRule]:
    """Findings about the configuration; an undecided rule if nothing could be composed."""
    if configuration is not None and configuration.lacks(job.entry, job.started_as):
        missing = _missing_program(job, configuration, versions)
        yield missing
        if missing.severity != "error":
            unknown = f"the configuration of {job.entry}, which is no part of {_verl(versions)}"
            yield from undecided_settings(job, unknown)
        return
    absent = configuration.missing_name(job.entry, job.options) if configuration is not None else None
    if configuration is not None and absent is not None:
        yield _missing_name(job, configuration, *absent)
        return
    if configuration is None or composed is None:
        entry = job.entry or "the program that the job starts"
        verl = f"verl {versions['verl']}" if versions.get("verl") else "verl, whose version is not given"
        others = () if configuration is not None else (PROGRAM_MISSING,)
        yield from undecided_settings(job, f"the configuration of {entry} in {verl}", *others)
        return
    program, composition = composed
    if composition.unknown:
        unknown = f"the configuration {program.name}, because of {composition.unknown}"
        yield from undecided_settings(job, unknown)
        return
    source = f"{program.folder}/{program.name}.yaml in {configuration.label}, composed by Hydra"
    if composition.problem:
        yield _finding(
            job,
            None,
            rule=CONFIG_RULE,
            message=f"Hydra cannot compose {program.name}",
            why=composition.problem,
            fix="correct the overrides of configuration groups, or the files of the configuration",
            source=source,
        )
        return
    if composition.incomplete and composition.refused:
        names = tuple(one.key for one in composition.refused)
        yield from undecided_settings(job, _elsewhere(names))
        return
    for option in job.unknown_options:
        yield _finding(
            job,
            option,
            rule=CONFIG_RULE,
            message=f"Hydra refuses the option `{option.text[:120]}`",
            why=f"{job.entry} stops with: unrecognized arguments: {option.text[:120]}",
            fix=_option_remedy(option, composition),
            source="the command line of hydra-core",
        )
    for refused in composition.refused:
        yield _finding(
            job,
            refused.override,
            rule=CONFIG_RULE,
            message=f"Hydra refuses `{refused.override.text[:120]}` ({program.name} of {_verl(versions)})",
            why=refused.message,
            fix=key_remedy(refused, composition, configuration, program),
            source=source,
            changes=_key_changes(refused, composition),
        )
    if not composition.incomplete:
        yield from _interpolation_findings(job, composition, source)
    yield from _type_findings(job, configuration, program, composition, source)
    yield from _section_findings(job, configuration.defaults(program), composition, source)
    yield from missing_file_findings(job, configuration)
    named = list(registry_findings(job, configuration, program, composition))
    yield from named
    unregistered = [one for one in named if isinstance(one, LintFinding)]
    yield from typo_findings(job, configuration, program, composition)
    options = list(engine_option_findings(job, composition, versions, configuration))
    yield from options
    yield from unread_option_sources(job, composition, versions)
    told_options = {(one.line, one.column) for one in options}
    refused_options = [one for one in options if one.severity == "error"]
    for one in _json_findings(job, composition, versions, configuration):
        if isinstance(one, UndecidedRule) or (one.line, one.column) not in told_options:
            yield one
        if isinstance(one, LintFinding) and one.severity == "error":
            refused_options.append(one)
    told_at = {(one.line, one.column) for one in unregistered}
    refused_at = {(one.line, one.column) for one in refused_options}
    stops = [
        one
        for one in program_findings(job, configuration, program, composition, versions)
        if isinstance(one, UndecidedRule)
        or (one.line, one.column) not in (refused_at if one.message.startswith(REFUSED) else told_at)
    ]
    yield from stops
    if composition.incomplete:
        for rule in (REGISTRY_RULE, UNREAD_RULE):
            yield UndecidedRule(rule=rule, unknown=("the configuration of another package",), recipe=job.name)
    stopped = {(one.line, one.column) for one in [*unregistered, *stops] if isinstance(one, LintFinding)}
    for finding in closed_set_findings(job, configuration, program, composition):
        if (finding.line, finding.column) not in stopped:
            yield finding
    # What verl refuses is not without effect.
    stopped_at = {(one.line, one.column) for one in stops if isinstance(one, LintFinding)}
    for finding in unread_findings(job, configuration, program, composition):
        if (finding.line, finding.column) not in stopped_at:
            yield finding


def _json_findings(
    job: JobSettings,
    composition: Composition,
    versions: Mapping[str, str],
    configuration: VerlConfiguration,
) -> Iterator[LintFinding | UndecidedRule]:
    """Findings about JSON in the options that verl hands on to vLLM."""
    values = composition.value(VLLM_OPTIONS.removesuffix("."))
    if not isinstance(values, dict) or composition.value("actor_rollout_ref.rollout.name") != "vllm":
        return
    given = GivenSections(values=values, settings=job.overrides, recipe=job.name, prefix=VLLM_OPTIONS)
    yield from section_findings(given, versions)
    if configuration.engine is not None:
        yield from additional_findings(given, versions, configuration.engine, configuration.cache)
    elif values.get(ADDITIONAL):
        [unknown] = unread_ascend(versions, has_source=False)
        yield UndecidedRule(rule=ENGINE_OPTION_RULE, unknown=(unknown,), recipe=job.name)


def _missing_program(
    job: JobSettings, configuration: VerlConfiguration, versions: Mapping[str, str]
) -> LintFinding:
    modules = sorted(path.removesuffix(".py").replace("/", ".") for path in configuration.paths)
    plain = job.entry.removesuffix(".py").replace("/", ".")
    similar = difflib.get_close_matches(plain, modules, n=2, cutoff=0.8)
    is_file = job.started_as == "file"
    name = plain.rpartition(".")[2]
    # Projects copy recipes into the package when they are installed, which the release does not show.
    copied = [one for one in modules if one.rpartition(".")[2] == name and not one.startswith("verl.")]
    if copied and not is_file and plain not in modules:
        return _finding(
            job,
            None,
            at=job.named_at.get("entry"),
            rule=PROGRAM_MISSING,
            severity="warning",
            message=f"{_verl(versions)} has no module {job.entry}, and has {copied[0]}",
            why=f"python -m stops with: No module named {job.entry}, unless the installation copies "
            "the recipe into the package; the overrides are not compared with its configuration",
            fix=f"start it with -m {copied[0]}, or copy its folder and its configuration into "
            f"{plain.rpartition('.')[0].replace('.', '/')} before",
            source=f"the files of {configuration.label}",
        )
    fix = f"did you mean {' or '.join(similar)}?" if similar else "start a program of this verl"
    return _finding(
        job,
        None,
        at=job.named_at.get("entry"),
        rule=PROGRAM_MISSING,
        message=f"{job.entry} is a module, and Python gets it as a file"
        if is_file
        else f"{_verl(versions)} has no module {job.entry}",
        why=f"python stops with: can't open file '{job.entry}'"
        if is_file
        else f"python -m stops with: No module named {job.entry}",
        fix=f"start it with -m {plain}" if plain in modules else fix,
        source=f"the files of {configuration.label}",
    )


def _missing_name(
    job: JobSettings, configuration: VerlConfiguration, folder: str, name: str, others: Sequence[str]
) -> LintFinding:
    if not name:
        near = difflib.get_close_matches(folder.rpartition("/")[2], others, n=1)
        return _finding(
            job,
            None,
            at=_option_place(job, "--config-path", "-cp", "--config-dir", "-cd"),
            rule=PROGRAM_MISSING,
            message=f"verl has no folder {folder}",
            why="Hydra takes a relative --config-path from the folder of the program, and stops with: "
            "Primary config directory not found",
            fix=f"did you mean --config-path={near[0]}?" if near else "give the path of the folder from /",
            source=f"the files of {configuration.label}",
        )
    near = difflib.get_close_matches(name, others, n=2, cutoff=0.6)
    return _finding(
        job,
        None,
        at=_option_place(job, "--config-name", "-cn"),
        rule=PROGRAM_MISSING,
        message=f"{folder} has no configuration {name}",
        why=f"Hydra stops with: Cannot find primary config '{name}'",
        fix=f"did you mean --config-name={' or '.join(near)}?"
        if near
        else f"name one of {', '.join(others[:8])}",
        source=f"the files of {configuration.label}",
    )


def _option_place(job: JobSettings, *names: str) -> Location | None:
    """Where the job has the first of these options."""
    return next((job.named_at[name] for name in names if name in job.named_at), None)


def _elsewhere(keys: tuple[str, ...]) -> str:
    """What cannot be compared: keys that a configuration of another package may have."""
    shown = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
    return f"the configuration of another package, which hydra.searchpath names, for {shown}"


def _type_findings(
    job: JobSettings,
    configuration: VerlConfiguration,
    program: Program,
    composition: Composition,
    source: str,
) -> Iterator[LintFinding]:
    """Texts where the configuration of this verl has a number or a truth value."""
    plain = configuration.defaults(program)
    for key, setting in job.overrides.items():
        if setting.unknown or not plain.has(key) or not composition.has(key):
            continue
        default, value = plain.value(key), composition.value(key)
        if default is None and value == "None":
            yield _text_none(job, setting, key, source)
            continue
        if default is None:
            default = configuration.example(composition, key)
        is_part = isinstance(value, float) and not value.is_integer() and not isinstance(default, bool)
        if isinstance(value, float) and not isinstance(default, (str, float)) and _COUNT.fullmatch(key):
            default = 1
        elif is_part and not isinstance(default, float) and configuration.is_whole(composition, key):
            default = default if isinstance(default, int) else 1
        elif not isinstance(default, (bool, int, float)) or not isinstance(value, (str, list, dict)):
            continue
        if isinstance(value, str) and _is_text_taken(value, key, configuration, program, composition):
            continue
        kind = "a truth value" if isinstance(default, bool) else "a number"
        example = str(default).lower() if isinstance(default, bool) else default
        yield _finding(
            job,
            setting,
            rule=TYPE_RULE,
            message=f"{key} is {value!r}, where verl has {kind if not is_part else 'a whole number'}",
            why=f"the default is {plain.value(key)!r}; Hydra takes any value, verl computes with it later",
            fix=f"give {kind}, for example {key}={example}",
            source=source,
            changes=misspelt_value(setting, key, TRUTH_VALUES) if isinstance(default, bool) else (),
        )


def _section_findings(
    job: JobSettings, plain: Composition, composition: Composition, source: str
) -> Iterator[LintFinding]:
    """Sections of the configuration in whose place there is one value, so that verl finds no key in them."""
    for key, setting in job.overrides.items():
        section, value = plain.value(key), composition.value(key)
        is_value = isinstance(value, (bool, int, float, str)) and "${" not in str(value)
        if setting.unknown or not isinstance(section, dict) or not section or not is_value:
            continue
        names = ("enable", "enabled") if isinstance(value, bool) else ("name", "type", "path", "file")
        inner = next((name for name in names if name in section), "")
        keys = ", ".join(sorted(name for name in section if name != "_target_")[:6])
        yield _finding(
            job,
            setting,
            rule=TYPE_RULE,
            message=f"{key} is {value!r}, where verl has a section with the keys {keys}",
            why="Hydra puts the value in place of the section; verl reads a key of the section and stops",
            fix=f"write {key}.{inner}={setting.text}" if inner else "set a key of the section",
            source=source,
        )


def _interpolation_findings(job: JobSettings, composition: Composition, source: str) -> Iterator[LintFinding]:
    """Values that name another key of the configuration, which has none."""
    for key, setting in job.overrides.items():
        named = [] if setting.unknown else _KEY_OF_CONFIGURATION.findall(setting.text)
        for missing in (name for name in named if not composition.has(name)):
            near = difflib.get_close_matches(missing, sorted(keys_of(composition.values)), n=1, cutoff=0.8)
            yield _finding(
                job,
                setting,
                rule=CONFIG_RULE,
                message=f"{key} stands for the key {missing}, which the configuration does not have",
                why=f"OmegaConf stops with: Interpolation key '{missing}' not found, when {key} is read",
                fix=f"write ${{{near[0]}}}" if near else "name a key of the configuration",
                source=source,
            )


def _text_none(job: JobSettings, setting: ScriptValue, key: str, source: str) -> LintFinding:
    return _finding(
        job,
        setting,
        rule=TYPE_RULE,
        message=f"{key} is the text 'None', and not null",
        why="Hydra reads `null` as no value, and `None` as a text, which verl computes with or opens",
        fix=f"write {key}=null",
        source=source,
        changes=value_change(setting, key, "null"),
    )


def _is_text_taken(
    value: str, key: str, configuration: VerlConfiguration, program: Program, composition: Composition
) -> bool:
    """Whether a setting can be this text: its class takes texts, or the program compares it with this one."""
    if "${" in value or configuration.takes_text(composition, key):
        return True
    return value in configuration.texts_of(program).of(key.rpartition(".")[2])


def _finding(
    job: JobSettings,
    setting: ScriptValue | None,
    *,
    rule: str,
    message: str,
    why: str,
    fix: str,
    source: str,
    severity: str = "error",
    changes: tuple[SettingChange, ...] = (),
    at: Location | None = None,
) -> LintFinding:
    where = setting.where if setting is not None else at or job.where
    return LintFinding.at(
        where,
        rule=rule,
        severity=severity,
        message=message,
        why=why,
        fix=fix,
        source=source,
        recipe=job.name,
        changes=changes,
    )


def _option_remedy(option: ScriptValue, composition: Composition) -> str:
    bare = option.text.lstrip("-")
    is_key = composition.has(bare.partition("=")[0])
    return f"write {bare}" if "=" in bare and is_key else "remove it, or write it as `key=value`"


def _key_changes(refused: RefusedOverride, composition: Composition) -> tuple[SettingChange, ...]:
    if _adds_existing(refused, composition):
        return without_plus(refused.override, refused.key)
    if composition.has(refused.key):
        return ()
    return key_change(refused.override, refused.key, sorted(keys_of(composition.values)))


def _adds_existing(refused: RefusedOverride, composition: Composition) -> bool:
    return refused.override.text.startswith(f"+{refused.key}=") and composition.has(refused.key)


def _verl(versions: Mapping[str, str]) -> str:
    return f"verl {versions['verl']}" if versions.get("verl") else "verl"
