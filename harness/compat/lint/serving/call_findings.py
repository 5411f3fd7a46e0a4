"""Findings of the rules SERVE-OPTION and ENGINE-CHECK in Python files that call classes of vLLM."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.compat.lint.dry_run.followed_engine import (
    ConfigClass,
    EngineChecks,
    follow_construction,
    follow_engine,
)
from harness.compat.lint.dry_run.program_values import Entries, ProgramError, Unknown
from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.engine_findings import (
    ENGINE_PACKAGE,
    ENGINE_RULE,
    engine_check_findings,
    package_label,
    unread_ascend,
)
from harness.compat.lint.engine_options import releases_with_option
from harness.compat.lint.engine_shape import engine_shape
from harness.compat.lint.engine_variables import stated_vllm
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, UndecidedRule
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.constructors import Constructor, constructor
from harness.compat.lint.serving.field_types import SourceNames
from harness.compat.lint.serving.json_types import limit_problem
from harness.compat.lint.serving.option_source import ARGUMENTS_FILE, server_options
from harness.compat.lint.serving.python_calls import PythonCall
from harness.compat.lint.serving.server_command import SERVE
from harness.compat.lint.serving.server_findings import SERVE_RULE, ServerSources, unread_vllm
from harness.compat.lint.serving.verified_options import option_place, verified_engine
from harness.compat.lint.setting_changes import nearest_word

Found = Iterator[LintFinding | UndecidedRule]
#: A file with more was written by a program.
MAX_CALLS = 100


def call_findings(
    calls: Sequence[PythonCall], name: str, versions: Mapping[str, str], sources: ServerSources | None
) -> Found:
    """The arguments that classes of vLLM do not have, and the checks of vLLM that fail with the others.

    name: of the file. What a class takes that was not understood is open, and is told.
    """
    vllm = sources.vllm if sources is not None else None
    if sources is None or vllm is None:
        for rule in (SERVE_RULE, ENGINE_RULE):
            yield UndecidedRule(rule=rule, unknown=(unread_vllm(versions, sources),), recipe=name)
        return
    names, label = SourceNames(vllm), package_label("vllm", stated_vllm(versions))
    known: dict[tuple[str, str], Constructor | None] = {}
    opened = [f"what is called after the first {MAX_CALLS} calls"] if len(calls) > MAX_CALLS else []
    for call in calls[:MAX_CALLS]:
        path = vllm.files.path_of(call.module)
        definition = names.find(path, call.name) if path else None
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            # Functions and modules are the subject of the check `api`.
            continue
        owner = (definition.path, definition.node.name)
        if owner not in known:
            known[owner] = constructor(names, definition)
        takes = known[owner]
        if takes is None:
            opened.append(f"the arguments of {call.name}, which were not understood")
            continue
        unknown = [] if call.guarded else [one for one in call.arguments if one not in takes.names]
        for argument in unknown:
            yield _unknown_argument(call, argument, takes, label, name)
        if not unknown and not call.guarded:
            job = _job(call, name)
            if any(path == ARGUMENTS_FILE for path, _ in takes.owners):
                yield from _engine(call, job, versions, sources, vllm, label)
            else:
                checks = _constructed(call, vllm, owner)
                yield from engine_check_findings(checks.failed, job, _text_of(call), label)
                opened += checks.unread
    if opened:
        yield UndecidedRule(rule=SERVE_RULE, unknown=tuple(dict.fromkeys(opened)), recipe=name)


def _job(call: PythonCall, name: str) -> JobSettings:
    """A call as a job whose settings are its arguments."""
    settings = {argument: one.setting for argument, one in call.arguments.items()}
    return JobSettings(name=name, where=call.where, overrides=settings, env={}, entry=call.name)


def _entries(call: PythonCall) -> Entries:
    """The arguments that are written out; the others are unknowns."""
    entries = Entries()
    for name, one in call.arguments.items():
        is_plain = isinstance(one.value, (str, int, float, bool, list, dict)) or one.value is None
        known = is_plain and not one.setting.unknown
        entries[name] = one.value if known else Unknown(sources=frozenset([one.setting.unknown]))
        entries.behind[name] = frozenset([name])
    return entries


def _text_of(call: PythonCall) -> Callable[[str], object]:
    return lambda key: call.arguments[key].setting.text if key in call.arguments else None


def _engine(
    call: PythonCall,
    job: JobSettings,
    versions: Mapping[str, str],
    sources: ServerSources,
    vllm: ModuleSources,
    label: str,
) -> Found:
    """The checks of vLLM and vllm-ascend that fail with the arguments of an engine."""
    entries, surroundings = _entries(call), Surroundings(device="npu", variables={})
    limits = tuple(_outside_of_limits(entries, vllm, sources))
    checks = (
        EngineChecks(failed=limits)
        if limits
        else verified_engine(entries, vllm, surroundings, sources.cache, by_command=False)
    )
    yield from engine_check_findings(checks.failed, job, _text_of(call), label)
    unread = [*checks.unread, *unread_ascend(versions, has_source=sources.ascend is not None)]
    shape = engine_shape(stated_vllm(versions))
    if sources.ascend is not None and shape is not None:
        ascend = follow_engine(entries, shape, sources.ascend, surroundings)
        ascend_label = package_label(ENGINE_PACKAGE, versions.get("vllm_ascend", ""))
        yield from engine_check_findings(ascend.failed, job, _text_of(call), ascend_label)
        unread += ascend.unread
    elif sources.ascend is not None:
        unread.append(f"the configuration of {label}")
    if unread:
        yield UndecidedRule(rule=ENGINE_RULE, unknown=tuple(unread), recipe=job.name)


def _outside_of_limits(
    entries: Entries, vllm: ModuleSources, sources: ServerSources
) -> Iterator[ProgramError]:
    """The numbers outside of the limits of their fields, which vLLM's classes refuse."""
    known = server_options(vllm, SERVE, sources.cache)
    for option in known.options if known is not None else ():
        problem = limit_problem(entries.get(option.dest), option.limits)
        if problem and option.owner:
            yield ProgramError(
                type="ValidationError",
                message=f"{option.dest}: {problem}",
                place=option_place(option, vllm),
                keys=frozenset([option.dest]),
            )


def _constructed(call: PythonCall, vllm: ModuleSources, owner: ConfigClass) -> EngineChecks:
    """The checks that the object makes of itself, with the defaults of what is not given."""
    if call.may_have_more:
        return EngineChecks()
    return follow_construction(_entries(call), owner, vllm, Surroundings(device="npu", variables={}))


def _unknown_argument(
    call: PythonCall, argument: str, takes: Constructor, label: str, name: str
) -> LintFinding:
    near, having = nearest_word(argument, sorted(takes.names)), releases_with_option(argument)
    is_of_engine = any(path == ARGUMENTS_FILE for path, _ in takes.owners)
    others = f"; the releases with it are {having[0]} to {having[-1]}" if having and is_of_engine else ""
    return LintFinding.at(
        call.arguments[argument].setting.where,
        rule=SERVE_RULE,
        severity="error",
        message=f"{call.name} of {label} has no argument {argument}",
        why=f"the call stops with: unexpected keyword argument{others}",
        fix=f"write {near}" if near else "remove it, or set what this release has for it",
        source=f"{call.name} in {takes.owners[0][0]} of {label}",
        recipe=name,
    )
