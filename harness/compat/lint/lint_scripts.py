"""Lints launch scripts: one, or those of folders, which several processes share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from harness.compat.lint.environment_findings import environment_findings
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import MAX_SCRIPTS, LaunchScript, NoJobError, read_script
from harness.compat.lint.lint_check import lint_job, sorted_findings
from harness.compat.lint.lint_measurements import LintFinding, LintResult, ScriptNote, UndecidedRule
from harness.compat.lint.own_programs import with_own_programs
from harness.compat.lint.serving.call_findings import call_findings
from harness.compat.lint.serving.python_calls import NoCallsError, read_calls
from harness.compat.lint.serving.server_command import ServerCommand
from harness.compat.lint.serving.server_findings import (
    NO_PROGRAM,
    NO_VERSION,
    SERVE_RULE,
    ServerSources,
    server_findings,
    server_job,
)
from harness.compat.lint.serving.verified_options import NO_SOURCE
from harness.errors import InputError, Location
from harness.forked_pool import ForkedPool, fork_workers
from harness.sources.tree import Tree

Shared = TypeVar("Shared")
Result = TypeVar("Result")

PARALLEL_FROM = 4
CALL_NOT_COMPARED = "the calls of vLLM were not compared, because this is not known: "
NOT_COMPARED = "the options of vLLM's server were not compared, because this is not known: "


def lint_python(path: Path, versions: Mapping[str, str], servers: ServerSources | None) -> LintResult:
    """Lint what a Python file calls of vLLM. InputError when it cannot be read, or uses no vLLM."""
    calls = read_calls(path)
    found = list(call_findings(calls, path.name, versions, servers))
    undecided = tuple(one for one in found if isinstance(one, UndecidedRule))
    absent = [why for one in undecided for why in one.unknown if why in (NO_VERSION, NO_SOURCE)]
    notes = [
        ScriptNote(line=call.where.line, text=f"{CALL_NOT_COMPARED}{why}", unread=True)
        for call in calls[:1]
        for why in absent[:1]
    ]
    return LintResult(
        findings=sorted_findings([one for one in found if isinstance(one, LintFinding)]),
        undecided=undecided,
        notes=tuple(notes),
    )


def lint_script(
    script: LaunchScript,
    versions: Mapping[str, str],
    configuration: VerlConfiguration | None = None,
    servers: ServerSources | None = None,
) -> LintResult:
    """Lint every job of a script, and every command that starts vLLM's server.

    servers: the sources of vLLM; None if its options are not to be had.
    """
    results = [lint_job(job, versions, configuration=configuration) for job in script.jobs]
    results += [_lint_server(one, versions, servers, told=not script.jobs) for one in script.servers]
    return LintResult(
        findings=sorted_findings([finding for result in results for finding in result.findings]),
        undecided=tuple(item for result in results for item in result.undecided),
        notes=(*script.notes, *(note for result in results for note in result.notes)),
    )


def _lint_server(
    command: ServerCommand, versions: Mapping[str, str], servers: ServerSources | None, *, told: bool
) -> LintResult:
    """told: whether options that could not be compared are a part of the script that was not read.

    A rule that was decided of some options only is no such part.
    """
    name = Path(command.where.file).name
    found, undecided, notes = [], [], []
    on_variables = environment_findings(server_job(command, name), None, versions)
    for one in (*on_variables, *server_findings(command, name, versions, servers)):
        if not isinstance(one, UndecidedRule):
            found.append(one)
            continue
        undecided.append(one)
        why = next((why for why in one.unknown if why in (NO_VERSION, NO_SOURCE, NO_PROGRAM)), "")
        if told and why and one.rule == SERVE_RULE:
            text = f"{NOT_COMPARED}{why}"
            notes.append(ScriptNote(line=command.where.line, text=text, unread=True))
    return LintResult(findings=tuple(found), undecided=tuple(undecided), notes=tuple(notes))


def verl_configuration(
    tree: Tree, cache: Path | None, engine: Tree | None, servers: ServerSources | None
) -> VerlConfiguration:
    """The configuration of a verl, whose jobs start the same vLLM as servers."""
    return VerlConfiguration(tree, cache, engine, (lambda: servers.vllm) if servers is not None else None)


def lint_file(
    path: Path,
    versions: Mapping[str, str],
    verl: Tree | None = None,
    cache: Path | None = None,
    engine: Tree | None = None,
    servers: ServerSources | None = None,
) -> LintResult:
    """Lint a launch script. InputError when it cannot be read, starts no job, or a version is not valid.

    verl: the files of this verl, from its wheel or commit. cache, engine: as in `VerlConfiguration`. servers:
    as in `lint_script`.
    """
    if path.suffix == ".py":
        return lint_python(path, versions, servers)
    script = read_script(path)
    if verl is None:
        return lint_script(script, versions, servers=servers)
    tree = with_own_programs(verl, [(path, script)])
    with verl_configuration(tree, cache, engine, servers).unpacked() as configuration:
        return lint_script(script, versions, configuration, servers)


def lint_folder(
    folder: Path,
    versions: Mapping[str, str],
    verl: Tree | None = None,
    cache: Path | None = None,
    engine: Tree | None = None,
    servers: ServerSources | None = None,
) -> LintResult:
    """Lint every `*.sh` file of a folder that starts a training job; those that cannot be read are noted.

    InputError if no file starts one, or a version is not valid.
    """
    scripts, notes = _scripts_in(folder)
    if not scripts and not notes:
        raise InputError(
            "no script in this folder starts a training job",
            where=Location(folder),
            why="no `*.sh` file runs a Python module or file with `key=value` overrides",
            fix="pass a folder with launch scripts, or one script",
        )
    return _lint_scripts(scripts, notes, versions, verl, cache, engine, servers)


def lint_paths(
    paths: Sequence[Path],
    versions: Mapping[str, str],
    verl: Tree | None,
    *,
    skip_others: bool,
    cache: Path | None = None,
    engine: Tree | None = None,
    servers: ServerSources | None = None,
) -> LintResult:
    """Lint several scripts and folders. InputError as for one.

    skip_others: leave out what starts no training job, and note what cannot be read, as in a folder.
    """
    if len(paths) == 1 and not skip_others:
        return (lint_folder if paths[0].is_dir() else lint_file)(
            paths[0], versions, verl, cache, engine, servers
        )
    scripts: list[tuple[Path, LaunchScript]] = []
    notes: list[ScriptNote] = []
    python = [path for path in paths if path.suffix == ".py" and not path.is_dir()]
    called = [found for path in python for found in _python_results(path, versions, servers, skip_others)]
    for path in (one for one in paths if one not in python):
        if path.is_dir() or skip_others:
            found, unread = _scripts_in(path)
            scripts += found
            notes += unread
        else:
            scripts.append((path, read_script(path)))
    return LintResult.of([*called, _lint_scripts(scripts, notes, versions, verl, cache, engine, servers)])


def _python_results(
    path: Path, versions: Mapping[str, str], servers: ServerSources | None, skip_others: bool
) -> list[LintResult]:
    """The result of one Python file of several; none for one that uses no vLLM, if others are skipped."""
    try:
        return [_with_files(lint_python(path, versions, servers), path)]
    except NoCallsError:
        if skip_others:
            return []
        raise


def _lint_scripts(
    scripts: Sequence[tuple[Path, LaunchScript]],
    notes: Sequence[ScriptNote],
    versions: Mapping[str, str],
    verl: Tree | None,
    cache: Path | None,
    engine: Tree | None,
    servers: ServerSources | None,
) -> LintResult:
    tree = with_own_programs(verl, scripts) if verl else None
    known = verl_configuration(tree, cache, engine, servers) if tree is not None else None
    with known.unpacked() if known is not None else nullcontext() as configuration:
        results = _ScriptSet(scripts, versions, configuration, servers).results()
    return LintResult(
        findings=sorted_findings([finding for result in results for finding in result.findings]),
        undecided=tuple(item for result in results for item in result.undecided),
        notes=(*notes, *(note for result in results for note in result.notes)),
    )


@dataclass(frozen=True)
class _ScriptSet:
    """Scripts for the same versions. Each takes its own time, and none depends on another."""

    scripts: Sequence[tuple[Path, LaunchScript]]
    versions: Mapping[str, str]
    configuration: VerlConfiguration | None
    servers: ServerSources | None

    def result(self, index: int) -> LintResult:
        """The findings of one script."""
        path, script = self.scripts[index]
        return _with_files(lint_script(script, self.versions, self.configuration, self.servers), path)

    def results(self) -> list[LintResult]:
        """The findings of each script. Forked processes share what was read of verl for the first one."""
        first = [self.result(index) for index in range(len(self.scripts))[:1]]
        return first + _of_each(self, _ScriptSet.result, range(1, len(self.scripts)))


def _of_each(shared: Shared, function: Callable[[Shared, int], Result], indexes: range) -> list[Result]:
    """`function(shared, index)` of each index, in several processes if there are enough of them."""
    workers = fork_workers()
    if len(indexes) < PARALLEL_FROM or workers == 1:
        return [function(shared, index) for index in indexes]
    pool = ForkedPool(shared, workers, collects=True)
    try:
        calls = [pool.submit(function, index) for index in indexes]
        return [call.result() for call in calls]
    except BrokenProcessPool:
        # A process was killed, for instance because memory was short. One alone needs less.
        return [function(shared, index) for index in indexes]
    finally:
        pool.close()


def shell_scripts(folder: Path) -> list[Path]:
    """The `*.sh` files of a folder, without those in hidden folders such as .git and .venv."""
    found: list[Path] = []
    waiting = [str(folder)]
    while waiting:
        # Unlike `rglob`, this goes into folders that are nested more deeply than calls can be.
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                if entry.name.endswith(".sh"):
                    found.append(Path(entry.path))
    return sorted(found)


def starts_job(script: Path) -> bool:
    """Whether a shell script starts a training job, or may start one because it cannot be read."""
    try:
        read_script(script)
    except NoJobError:
        return False
    except InputError:
        return True
    return True


def _scripts_in(folder: Path) -> tuple[list[tuple[Path, LaunchScript]], list[ScriptNote]]:
    scripts: list[tuple[Path, LaunchScript]] = []
    notes: list[ScriptNote] = []
    paths = shell_scripts(folder) if folder.is_dir() else [folder]
    if len(paths) > MAX_SCRIPTS:
        raise InputError(
            f"this folder has {len(paths):,} scripts",
            where=Location(folder),
            why=f"at most {MAX_SCRIPTS:,} are read",
            fix="pass a smaller folder",
        )
    for path, found in zip(paths, _of_each(paths, _read_one, range(len(paths))), strict=True):
        if isinstance(found, ScriptNote):
            notes.append(found)
        elif found is not None:
            scripts.append((path, found))
    return scripts, notes


def _read_one(paths: Sequence[Path], index: int) -> LaunchScript | ScriptNote | None:
    """A script, None if it starts no job, or that it cannot be read."""
    try:
        return read_script(paths[index])
    except NoJobError:
        return None
    except InputError as error:
        text = f"{paths[index]} is not read: {error.problems[0].what}"
        return ScriptNote(line=0, text=text, unread=True)


def _with_files(result: LintResult, path: Path) -> LintResult:
    """The result with the script's path in every note, because a folder has several."""
    notes = tuple(replace(note, text=f"{path}:{note.line}: {note.text}") for note in result.notes)
    return replace(result, notes=notes)


def new_findings(result: LintResult, before: LintResult) -> LintResult:
    """The findings that `before` does not have, wherever in the script they are."""
    known = Counter((one.file, one.rule, one.message) for one in before.findings)
    fresh = []
    for finding in result.findings:
        name = (finding.file, finding.rule, finding.message)
        known[name] -= 1
        if known[name] < 0:
            fresh.append(finding)
    return replace(result, findings=tuple(fresh))
