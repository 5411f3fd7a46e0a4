"""The verl that the recipes of a repository require for their launch scripts: REQUIRED_VERL.txt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.compat.lint.lint_check import shell_scripts, starts_job
from harness.patchstack.stacks.stack_import import REQUIRED_VERL, required_verl


def scripts_by_verl(paths: Sequence[Path]) -> Mapping[str, tuple[Path, ...]]:
    """Release of verl -> the scripts below the nearest REQUIRED_VERL.txt that names it; "" -> all others.

    A folder in which no file names a release stays a folder.
    """
    found: dict[str, list[Path]] = {}
    for path in paths:
        for script in _pinned_scripts(path) or (path,):
            found.setdefault(_required(script), []).append(script)
    return {version: tuple(scripts) for version, scripts in found.items()}


def _pinned_scripts(path: Path) -> list[Path]:
    """The scripts of a folder that start a job, if a file below it may require a version."""
    is_pinned = path.is_dir() and next(path.rglob(REQUIRED_VERL), None) is not None
    return [script for script in shell_scripts(path) if starts_job(script)] if is_pinned else []


def _required(script: Path) -> str:
    """The release that the nearest file above requires, or "". Files above the repository do not count."""
    for parent in script.absolute().parents:
        file = parent / REQUIRED_VERL
        if file.is_file():
            return required_verl(file)
        if (parent / ".git").exists():
            break
    return ""
