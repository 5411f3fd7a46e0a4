"""Findings of the rules SERVE-OPTION and ENGINE-CHECK in commands that start vLLM's server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compat.lint.additional_options import ADDITIONAL, GivenSections, additional_findings
from harness.compat.lint.dry_run.followed_engine import follow_engine, follow_server
from harness.compat.lint.dry_run.program_values import Entries, Unknown, Value
from harness.compat.lint.dry_run.program_walk import Surroundings
from harness.compat.lint.engine_findings import (
    ENGINE_PACKAGE,
    ENGINE_RULE,
    engine_check_findings,
    unread_ascend,
)
from harness.compat.lint.engine_options import ENGINE_OPTION_RULE, releases_with_option
from harness.compat.lint.engine_shape import engine_shape
from harness.compat.lint.engine_variables import vllm_version
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.lint_measurements import LintFinding, UndecidedRule
from harness.compat.lint.module_files import ModuleSources
from harness.compat.lint.serving.option_source import ServerOptions, server_options
from harness.compat.lint.serving.server_command import SERVE, ServerCommand
from harness.compat.lint.serving.server_parser import (
    NO_ARGUMENT,
    ArgumentProblem,
    ParsedCommand,
    UnknownText,
    parse_command,
)
from harness.compat.lint.serving.verified_options import NO_SOURCE, verified_options
from harness.sources.tree import Tree

SERVE_RULE = "SERVE-OPTION"
NO_VERSION = "the version of vLLM: give the versions, for example --vllm-ascend"
NO_PROGRAM = "the options of this program, which are not where they are looked for in the source of vLLM"
#: The function of vLLM that checks the parsed arguments before anything is started.
CHECKED_BY = ("vllm/entrypoints/openai/cli_args.py", "validate_parsed_serve_args")


@dataclass(kw_only=True)
class ServerSources:
    """Where the vLLM and the vllm-ascend of servers come from: fetched for the first script with a server.

    fetch_vllm, fetch_ascend: their files, None if they are not at hand. cache: the cache folder.
    """

    fetch_vllm: Callable[[], Tree | None]
    fetch_ascend: Callable[[], Tree | None] = lambda: None
    cache: Path | None = None

    @functools.cached_property
    def vllm(self) -> ModuleSources | None:
        """The modules of vLLM."""
        tree = self.fetch_vllm()
        return ModuleSources(tree) if tree is not None else None

    @functools.cached_property
    def ascend(self) -> ModuleSources | None:
        """The modules of vllm-ascend."""
        tree = self.fetch_ascend()
        return ModuleSources(tree) if tree is not None else None


def server_job(command: ServerCommand, name: str) -> JobSettings:
    """A server as a job without settings of verl: what rules on variables read."""
    return JobSettings(
        name=name, where=command.where, overrides={}, env=command.environment, entry=command.program
    )


def server_findings(
    command: ServerCommand, name: str, versions: Mapping[str, str], sources: ServerSources | None
) -> Iterator[LintFinding | UndecidedRule]:
    """What vLLM's parser refuses of a command, and the checks of vllm-ascend that fail with its options."""
    version = vllm_version(versions)
    known = server_options(sources.vllm, command.program, sources.cache) if sources and sources.vllm else None
    if sources is None or sources.vllm is None or known is None:
        for rule in (SERVE_RULE, ENGINE_RULE):
            yield UndecidedRule(rule=rule, unknown=(unread_vllm(versions, sources),), recipe=name)
        return
    parsed = parse_command(command.arguments, known)
    for problem in parsed.problems:
        yield _finding(problem, command, name, version)
    if parsed.open:
        yield UndecidedRule(rule=SERVE_RULE, unknown=parsed.open, recipe=name)
    if parsed.problems:
        return
    surroundings = Surroundings(device="npu", variables=_variables(command))
    job = replace(server_job(command, name), overrides=parsed.words)
    arguments, shape = _arguments(parsed), engine_shape(version)
    checks = follow_server(_with_defaults(arguments, known), *CHECKED_BY, sources.vllm, surroundings)
    yield from engine_check_findings(checks.failed, job, parsed.values.get, f"vllm {version}")
    yield from _verified(parsed, arguments, known, job, sources.vllm, surroundings, version)
    given = GivenSections(values=parsed.values, settings=parsed.words, recipe=name)
    if sources.ascend is not None:
        yield from additional_findings(given, versions, sources.ascend, sources.cache)
    elif parsed.values.get(ADDITIONAL):
        rules = unread_ascend(versions, has_source=False)
        yield UndecidedRule(rule=ENGINE_OPTION_RULE, unknown=rules, recipe=name)
    yield from _without_model(command, parsed, known, name, version)
    lost = [one for one in parsed.open if one.startswith(NO_ARGUMENT)]
    unread = [*lost, *checks.unread, *unread_ascend(versions, has_source=sources.ascend is not None)]
    if sources.ascend is not None and shape is not None:
        checks = follow_engine(arguments, shape, sources.ascend, surroundings)
        unread += checks.unread
        label = f"{ENGINE_PACKAGE} {versions.get('vllm_ascend', '')}"
        yield from engine_check_findings(checks.failed, job, parsed.values.get, label)
    elif sources.ascend is not None:
        unread.append(f"the configuration of vllm {version}".rstrip())
    if unread:
        yield UndecidedRule(rule=ENGINE_RULE, unknown=tuple(dict.fromkeys(unread)), recipe=name)


def _verified(
    parsed: ParsedCommand,
    arguments: Entries,
    known: ServerOptions,
    job: JobSettings,
    vllm: ModuleSources,
    surroundings: Surroundings,
    version: str,
) -> Iterator[LintFinding | UndecidedRule]:
    """The checks of the classes of vLLM's configuration that fail with the options that a command gives."""
    checks = verified_options(arguments, known, vllm, surroundings)
    yield from engine_check_findings(checks.failed, job, parsed.values.get, f"vllm {version}")
    if checks.unread:
        yield UndecidedRule(rule=ENGINE_RULE, unknown=checks.unread, recipe=job.name)


def _without_model(
    command: ServerCommand, parsed: ParsedCommand, known: ServerOptions, name: str, version: str
) -> Iterator[LintFinding]:
    """A command that names no model: vLLM starts the default of its configuration, which nobody means."""
    places = ("model_tag", "model", "config")
    model = next((one.defaults[0] for one in known.options if one.dest == "model" and one.defaults), None)
    is_open = command.may_have_more or any(one.unknown for one in command.arguments) or parsed.open
    if command.program == SERVE and model and not is_open and not any(map(parsed.values.get, places)):
        yield LintFinding.at(
            command.where,
            rule=SERVE_RULE,
            severity="warning",
            message=f"{command.program} gets no model, and starts {model}",
            why=f"this is the default of vllm {version} for a server without a model",
            fix=f"write the model after {command.program}",
            source=f"the default of the option --model in the source of vllm {version}",
            recipe=name,
        )


def unread_vllm(versions: Mapping[str, str], sources: ServerSources | None) -> str:
    """Why the options of a server are not known."""
    if sources is not None and sources.vllm is not None:
        return NO_PROGRAM
    return NO_SOURCE if versions.keys() & {"vllm", "vllm_ascend"} else NO_VERSION


def _finding(problem: ArgumentProblem, command: ServerCommand, name: str, version: str) -> LintFinding:
    fix = f"write {problem.near}" if problem.near else "give a value that the option takes"
    if problem.is_unknown:
        having = releases_with_option(problem.option.lstrip("-").replace("-", "_"))
        message = f"vllm {version} has no option {problem.option}"
        why = f"{command.program} stops with: unrecognized arguments" + (
            f"; the releases with this option are {having[0]} to {having[-1]}" if having else ""
        )
        fix = fix if problem.near else "remove it, or set what this release has for it"
    elif problem.option:
        message = f"{problem.option} of vllm {version} does not take {problem.word.text[:80]}"
        why = f"{command.program} stops: {problem.problem}"
    else:
        message = f"{command.program} takes no argument {problem.problem[:80]} at this place"
        why = "unrecognized arguments: a switch has no value, and a value with spaces needs quotes"
        fix = "remove it, or quote the whole value"
    return LintFinding.at(
        problem.word.where,
        rule=SERVE_RULE,
        severity="error",
        message=message,
        why=why,
        fix=fix,
        source=f"the parser of the command in the source of vllm {version}",
        recipe=name,
    )


def _variables(command: ServerCommand) -> Mapping[str, Value]:
    return {
        name: Unknown(sources=frozenset([one.unknown])) if one.unknown else one.text
        for name, one in command.environment.items()
    }


def _with_defaults(arguments: Entries, known: ServerOptions) -> Entries:
    """The arguments as vLLM checks them: with the defaults of the other options."""
    every = arguments.copy()
    every["subparser"] = "serve"
    for option in known.options:
        if option.dest not in every:
            every[option.dest] = option.defaults[0] if option.defaults else Unknown()
    return every


def _arguments(parsed: ParsedCommand) -> Entries:
    """The options that a command gives, as the arguments of the engine."""
    entries = Entries()
    for name, value in parsed.values.items():
        word = parsed.words.get(name)
        if word is not None:
            is_known = not isinstance(value, UnknownText) and not word.unknown
            entries[name] = value if is_known else Unknown(sources=frozenset([word.unknown]))
            entries.behind[name] = frozenset([name])
    return entries
