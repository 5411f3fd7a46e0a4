"""Fixes the launch scripts of a path: as a patch that is shown, and then in the files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from harness.atomic_write import replace_bytes
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import script_bytes, script_of
from harness.compat.lint.lint_check import lint_script
from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.script_fixes import FixedScript, FixTrials
from harness.errors import InputError, Location, Problem
from harness.sources.tree import Tree

NO_NEWLINE = b"\n\\ No newline at end of file\n"


def fixed_scripts(
    path: Path,
    versions: Mapping[str, str],
    verl: Tree | None,
    is_wanted: Callable[[LintFinding], bool],
) -> tuple[FixedScript, ...]:
    """The scripts of a file or folder for which fixes of the wanted findings were tried."""
    with nullcontext() if verl is None else VerlConfiguration(verl).unpacked() as configuration:
        return tuple(_fixed(file, versions, configuration, is_wanted) for file in _scripts(path))


def _scripts(path: Path) -> Iterator[Path]:
    """The scripts that lint reads, without those that it cannot read."""
    for file in sorted(path.rglob("*.sh")) if path.is_dir() else [path]:
        try:
            script_of(script_bytes(file), file)
        except InputError:
            continue
        yield file


def _fixed(
    file: Path,
    versions: Mapping[str, str],
    configuration: VerlConfiguration | None,
    is_wanted: Callable[[LintFinding], bool],
) -> FixedScript:
    def lint(script: bytes) -> LintResult:
        return lint_script(script_of(script, file), versions, configuration)

    return FixTrials(file, script_bytes(file), lint).fixed(is_wanted)


def patch_of(script: FixedScript) -> bytes:
    """The unified diff of a script, for `git apply` in the current folder; b"" without a fix."""
    name = os.fsencode(os.path.relpath(script.path))
    before, after = (_lines(text) for text in (script.before, script.fixed))
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, b"a/" + name, b"b/" + name)
    return b"".join(line if line.endswith(b"\n") else line + NO_NEWLINE for line in lines)


def _lines(text: bytes) -> list[bytes]:
    """Lines that end with a line feed: bytes.splitlines would also split at a carriage return."""
    return [line for line in text.replace(b"\n", b"\n\0").split(b"\0") if line]


def write_fixes(scripts: Sequence[FixedScript], root: Path) -> None:
    """Replace each script that has fixes in one step.

    root: the file or folder that the user named. InputError, with nothing written, if a script is a link,
    lies outside of it, or is not as it was when it was read.
    """
    folder = (root if root.is_dir() else root.parent).resolve()
    changed = [script for script in scripts if script.fixes]
    problems = [(script, why) for script in changed if (why := _problem(script, folder))]
    if problems:
        fix = "pass the script itself, and run the command again"
        raise InputError.of(
            [
                Problem("this script was not fixed", Location(script.path), why, fix)
                for script, why in problems
            ]
        )
    for script in changed:
        _write(script)


def _write(script: FixedScript) -> None:
    try:
        replace_bytes(script.path, script.fixed)
    except OSError as error:
        raise InputError(
            "this script cannot be written", where=Location(script.path), why=error.strerror or str(error)
        ) from error


def _problem(script: FixedScript, folder: Path) -> str:
    if script.path.is_symlink():
        return "it is a symbolic link"
    if not script.path.resolve().is_relative_to(folder):
        return f"it lies outside of {folder}"
    return "it has changed since it was read" if script.path.read_bytes() != script.before else ""
