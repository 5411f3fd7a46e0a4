"""Findings of the rule VERL-CHECK: checks of verl itself that fail with a job's configuration."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.code_graph.stored_facts import code_digest
from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.compat.lint.dry_run.followed_engine import EngineChecks, follow_engine
from harness.compat.lint.dry_run.program_modules import MISSING_MODULE
from harness.compat.lint.dry_run.program_values import Entries, ProgramError, Unknown, Value
from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.dry_run.started_program import ProgramChecks, follow_program
from harness.compat.lint.engine_findings import (
    ENGINE_PACKAGE,
    ENGINE_RULE,
    NO_FILES,
    engine_check_findings,
    package_label,
    unread_ascend,
)
from harness.compat.lint.engine_shape import engine_shape
from harness.compat.lint.engine_variables import stated_vllm
from harness.compat.lint.hydra_compose import UNKNOWN_VALUE, Composition, Program, VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, SettingChange, UndecidedRule
from harness.compat.lint.ruleset import load_ruleset
from harness.compat.lint.serving.verified_options import verified_engine
from harness.compat.lint.setting_changes import misspelt_value
from harness.compat.lint.shell.values import ScriptValue
from harness.compat.lint.unread_settings import UNREAD_RULE
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.digest import digest_json

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigValue

PROGRAM_RULE = "VERL-CHECK"
MAX_SETTINGS = 8
#: The names of settings that turn their section on, and how many of them are tried in a job.
SWITCHES, MAX_SWITCHES = ("enable", "enabled"), 3


def program_findings(
    job: JobSettings,
    configuration: VerlConfiguration,
    program: Program,
    composition: Composition,
    versions: Mapping[str, str],
) -> Iterator[LintFinding | UndecidedRule]:
    """The checks of verl and vllm-ascend that fail, and the unknown values on which others depend.

    versions: axis -> version; the checks of vllm-ascend are those of its release with the vLLM of the job.

    Nothing is found if overrides were not read: what verl gets is then not known. If Hydra refuses some, only
    modules are found that the program imports and this verl lacks: no other override mends that.
    """
    if composition.problem:
        return
    if composition.incomplete or job.has_unread_arguments:
        missing = "the configuration of another package" if composition.incomplete else "the other arguments"
        for rule in (PROGRAM_RULE, ENGINE_RULE):
            yield UndecidedRule(rule=rule, unknown=(missing,), recipe=job.name)
        return
    followed = _Followed(job, configuration, program, stated_vllm(versions))
    checks = followed.checks(composition.values)
    for error in _distinct(checks):
        if not composition.refused or error.type == MISSING_MODULE:
            yield _finding(error, job, configuration, composition)
    if composition.refused:
        return
    unknown = (*sorted({name for check in checks.open for name in check.sources if name}), *checks.unread)
    if unknown:
        yield UndecidedRule(rule=PROGRAM_RULE, unknown=unknown, recipe=job.name)
    yield from _engine_findings(job, composition, checks, configuration, versions)
    yield from _switched_off(followed, composition, checks)


def _engine_findings(
    job: JobSettings,
    composition: Composition,
    checks: ProgramChecks,
    configuration: VerlConfiguration,
    versions: Mapping[str, str],
) -> Iterator[LintFinding | UndecidedRule]:
    """Failed checks of vllm-ascend; undecided if they were not followed, and the job may start vLLM."""
    if checks.engine is None and not _may_start_vllm(composition.values):
        return
    unread = unread_ascend(versions, has_source=configuration.engine is not None)
    if not unread:
        engine = checks.engine or EngineChecks(unread=("the arguments with which verl starts vLLM",))
        label = package_label(ENGINE_PACKAGE, versions.get("vllm_ascend", ""))
        yield from engine_check_findings(engine.failed, job, composition.value, label)
        unread = engine.unread
    if checks.vllm is not None:
        label = package_label("vllm", stated_vllm(versions))
        yield from engine_check_findings(checks.vllm.failed, job, composition.value, label)
        unread = (*unread, *checks.vllm.unread)
    if unread:
        yield UndecidedRule(rule=ENGINE_RULE, unknown=unread, recipe=job.name)


def _may_start_vllm(values: Mapping[str, ConfigValue]) -> bool:
    name = Composition(values=values).value("actor_rollout_ref.rollout.name")
    return isinstance(name, str) and (name == "vllm" or UNKNOWN_VALUE in name or "${" in name)


@dataclass(frozen=True)
class _Followed:
    """The program of a job. vllm: its vLLM, a release or `RELEASE@COMMIT`, "" if it is not known."""

    job: JobSettings
    configuration: VerlConfiguration
    program: Program
    vllm: str

    def checks(self, values: Mapping[str, ConfigValue]) -> ProgramChecks:
        """The checks with a configuration; stored ones, if the program was followed with it before."""
        has_vllm = bool(self.vllm) and _may_start_vllm(values)
        found = self._checks(values, has_vllm)
        # A program can start vLLM whatever the configuration says of its rollout.
        starts_anyway = bool(self.vllm) and not has_vllm and found.engine is not None
        return self._checks(values, True) if starts_anyway else found

    def _checks(self, values: Mapping[str, ConfigValue], has_vllm: bool) -> ProgramChecks:
        """has_vllm: whether vLLM itself is followed, too."""
        job, configuration = self.job, self.configuration
        model, variables = _model(job), _variables(job)
        vllm = configuration.fetch_vllm() if has_vllm and configuration.fetch_vllm is not None else None

        def surroundings() -> Surroundings:
            return Surroundings(device=job.device, variables=variables, model=model, world_size=job.processes)

        def follow_ascend(arguments: Entries) -> EngineChecks:
            shape = engine_shape(self.vllm)
            if configuration.engine is None or shape is None:
                return EngineChecks(
                    unread=(f"the configuration of {package_label('vllm', self.vllm)}".rstrip(),)
                )
            return follow_engine(arguments, shape, configuration.engine, surroundings())

        def follow_vllm(arguments: Entries, by_command: bool) -> EngineChecks:
            if vllm is None:
                return EngineChecks(unread=(f"{NO_FILES}{package_label('vllm', self.vllm)}",))
            return verified_engine(
                arguments, vllm, surroundings(), configuration.cache, by_command=by_command
            )

        def follow() -> ProgramChecks:
            modules = configuration.modules
            return follow_program(
                self.program.module,
                values,
                modules.files,
                modules.syntax_tree,
                surroundings(),
                follow_ascend,
                follow_vllm if has_vllm else None,
            )

        if configuration.cache is None:
            return follow()
        stated = {name: ["", one.unknown] if one.unknown else [one.text] for name, one in job.env.items()}
        engine = [vllm.digest if vllm is not None else str(has_vllm), self.vllm]
        if configuration.engine is not None:
            engine += [configuration.engine.digest, shipped_pack().shipped_digest]
        try:
            given = digest_json([values, job.device, stated, model, job.processes, engine])
        except ValueError:
            # Infinity is no JSON.
            return follow()
        cache = AnalysisCache(folder=configuration.cache / "lint", code=_walk_code(configuration.cache))
        inputs = [configuration.modules.digest, self.program.module, given]
        return cache.get("followed program", inputs, ProgramChecks, follow)


@functools.cache
def _walk_code(cache: Path) -> str:
    """Digest of the code that follows programs."""
    every = ("harness.compat.lint.dry_run*", "harness.compat.lint.serving*")
    return digest_json([code_digest(one, cache=cache) for one in every])


def _switched_off(
    followed: _Followed, composition: Composition, checks: ProgramChecks
) -> Iterator[LintFinding | UndecidedRule]:
    """Settings that verl reads only if a switch of their section is on, which is off by default.

    verl's program is followed with the switch off and on: a setting that is read with it alone does nothing.
    """
    job, configuration, read = followed.job, followed.configuration, checks.read
    plain = configuration.defaults(followed.program)
    by_switch: dict[str, list[str]] = {}
    for key in job.overrides:
        switch = _switch(key, plain, composition)
        if switch and switch not in job.overrides and composition.value(key) != plain.value(key):
            by_switch.setdefault(switch, []).append(key)
    if by_switch and checks.unread:
        yield UndecidedRule(rule=UNREAD_RULE, unknown=checks.unread, recipe=job.name)
    for switch, keys in list(by_switch.items())[:MAX_SWITCHES]:
        if switch not in read or all(_is_read(key, read) for key in keys):
            continue
        read_with = followed.checks(_with_true(composition.values, switch.split("."))).read
        for key in keys:
            if not _is_read(key, read) and _is_read(key, read_with):
                yield LintFinding.at(
                    job.overrides[key].where,
                    rule=UNREAD_RULE,
                    severity="warning",
                    message=f"{key} has no effect",
                    why=f"verl reads it only if {switch} is true, and it is false by default",
                    fix=f"set {switch}=true, or remove {key}",
                    source=f"the code and the configuration of {configuration.label}",
                    recipe=job.name,
                )


def _switch(key: str, plain: Composition, composition: Composition) -> str:
    """The switch of the innermost section around a key that has one, if it is off; "" if there is none."""
    section = key.rpartition(".")[0]
    while section:
        for name in SWITCHES:
            switch = f"{section}.{name}"
            if plain.value(switch) is False:
                return switch if composition.value(switch) is False and switch != key else ""
        section = section.rpartition(".")[0]
    return ""


def _is_read(key: str, read: frozenset[str]) -> bool:
    return key in read or any(one.startswith(f"{key}.") for one in read)


def _with_true(values: Mapping[str, ConfigValue], parts: Sequence[str]) -> dict[str, ConfigValue]:
    inner = values.get(parts[0])
    if len(parts) == 1 or not isinstance(inner, dict):
        return {**values, parts[0]: True}
    return {**values, parts[0]: _with_true(inner, parts[1:])}


def _variables(job: JobSettings) -> Mapping[str, Value]:
    return {
        name: Unknown(sources=frozenset([value.unknown])) if value.unknown else value.text
        for name, value in job.env.items()
    }


def _model(job: JobSettings) -> Mapping[str, Value]:
    """What the config.json of the job's model is known to have."""
    facts = load_ruleset().model_facts(job.model)
    if facts is None:
        return {}
    known = {
        "num_attention_heads": facts.heads,
        "num_key_value_heads": facts.query_groups,
        "max_position_embeddings": facts.positions,
    }
    return {name: value for name, value in known.items() if value}


def _distinct(checks: ProgramChecks) -> list[ProgramError]:
    """The failed checks of settings, without those that rest on nothing but the settings of an earlier one.

    What rests on no setting is about something that only a run has, unless verl lacks an imported module.
    """
    found: list[ProgramError] = []
    for error in checks.failed:
        if error.type == MISSING_MODULE:
            is_new = all(error.message != earlier.message for earlier in found)
        else:
            is_new = bool(error.keys) and not any(error.keys <= earlier.keys for earlier in found)
        if is_new:
            found.append(error)
    return found


def _finding(
    error: ProgramError, job: JobSettings, configuration: VerlConfiguration, composition: Composition
) -> LintFinding:
    settings = _settings(error, job)
    leaves = sorted(_leaves(error.keys, composition))
    # A setting that is missing, and that the message names, belongs to what the job sets beside it.
    named = [key for key in leaves if re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", error.message)]
    beside = (job.overrides[key] for key in job.overrides if key.startswith(_sections(named)))
    at = next(iter(settings.values()), None) or next(beside, None)
    where = at.where if at is not None else job.where
    keys = list(settings) or named or leaves[:MAX_SETTINGS]
    values = ", ".join(f"{key}={composition.value(key)}" for key in keys)
    place = f"{error.place} of {configuration.label}"
    return LintFinding.at(
        where,
        rule=PROGRAM_RULE,
        severity="error",
        message=f"verl stops: {error.message if ' ' in error.message else f'{error.type} {error.message}'}",
        why=f"{place} raises {error.type}; this rests on {values}"
        if values
        else f"{place} raises {error.type}",
        fix=_remedy(error, keys),
        source=place,
        recipe=job.name,
        changes=_value_changes(error, settings, configuration),
    )


def _remedy(error: ProgramError, keys: Sequence[str]) -> str:
    if error.type == MISSING_MODULE:
        return "use the verl that this program was written for, or change its imports"
    return (
        f"change the value of {' or '.join(keys)}" if keys else "read the line of verl that raises the error"
    )


def _value_changes(
    error: ProgramError, settings: Mapping[str, ScriptValue], configuration: VerlConfiguration
) -> tuple[SettingChange, ...]:
    """A check of one setting, whose value is a misspelt text of the module that checks it."""
    if len(settings) != 1:
        return ()
    [(key, setting)] = settings.items()
    parsed = configuration.syntax_tree(error.place.path)
    texts = (node.value for node in ast.walk(parsed) if isinstance(node, ast.Constant)) if parsed else ()
    return misspelt_value(setting, key, (text for text in texts if isinstance(text, str) and text))


def _settings(error: ProgramError, job: JobSettings) -> Mapping[str, ScriptValue]:
    """The overrides on which a failed check rests; those that the message names come first."""
    deleted = {word.text[1:].partition("=")[0]: word for word in job.arguments if word.text[:1] == "~"}
    every = {**deleted, **job.overrides}
    found = {key: value for key, value in every.items() if key in error.keys}
    places = {key: error.message.find(key.rpartition(".")[2]) for key in found}
    named = {key: found[key] for key in sorted(found, key=places.__getitem__) if places[key] >= 0}
    return dict(list({**named, **found}.items())[:MAX_SETTINGS])


def _sections(keys: Sequence[str]) -> tuple[str, ...]:
    """The starts of keys that are in the same section as these; a section of the first level is too wide."""
    return tuple(f"{key.rpartition('.')[0]}." for key in keys if key.count(".") > 1)


def _leaves(keys: frozenset[str], composition: Composition) -> list[str]:
    return [key for key in keys if not isinstance(composition.value(key), Mapping)]
