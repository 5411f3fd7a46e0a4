"""Fixes of launch scripts, as a patch that is shown, and then in the files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from harness.atomic_write import replace_bytes
from harness.compat.lint.script_fixes import FixedScript
from harness.errors import InputError, Location, Problem

NO_NEWLINE = b"\n\\ No newline at end of file\n"


def patch_of(script: FixedScript) -> bytes:
    """The unified diff of a script, for `git apply` in the current folder; b"" without a fix."""
    name = os.fsencode(os.path.relpath(script.path))
    before, after = (_lines(text) for text in (script.before, script.fixed))
    lines = difflib.diff_bytes(difflib.unified_diff, before, after, b"a/" + name, b"b/" + name)
    return b"".join(line if line.endswith(b"\n") else line + NO_NEWLINE for line in lines)


def _lines(text: bytes) -> list[bytes]:
    """Lines that end with a line feed: bytes.splitlines would also split at a carriage return."""
    return [line for line in text.replace(b"\n", b"\n\0").split(b"\0") if line]


def write_fixes(scripts: Sequence[FixedScript], roots: Sequence[Path]) -> None:
    """Replace each script that has fixes in one step.

    roots: the files and folders that the user named. InputError, with nothing written, if a script is a link,
    lies outside of them, or is not as it was when it was read.
    """
    folders = [(root if root.is_dir() else root.parent).resolve() for root in roots]
    changed = [script for script in scripts if script.fixes]
    problems = [(script, why) for script in changed if (why := _problem(script, folders))]
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


def _problem(script: FixedScript, folders: Sequence[Path]) -> str:
    if script.path.is_symlink():
        return "it is a symbolic link"
    if not any(script.path.resolve().is_relative_to(folder) for folder in folders):
        return "it lies outside of the folder"
    return "it has changed since it was read" if script.path.read_bytes() != script.before else ""
