"""The verl that a repository pins for its launch scripts, in the folders above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from harness.compat.lint.lint_scripts import shell_scripts, starts_job
from harness.matrix.model.definitions import Axis
from harness.patchstack.stacks.stack_import import REQUIRED_VERL
from harness.sources.git.mirrors import mirror_folders
from harness.workspace.pins.other_hardware import is_for_other_hardware
from harness.workspace.pins.pinned_commits import commit_version
from harness.workspace.pins.pinned_versions import PinnedVersion, find_pins

#: The folder that the sources of verl have: their scripts are for themselves.
_VERL = "verl/trainer"


def scripts_by_verl(paths: Sequence[Path], verl: Axis) -> Mapping[PinnedVersion | None, tuple[Path, ...]]:
    """The pin of the nearest folder above that pins verl -> the scripts; None -> those without one.

    A folder without pins for its scripts stays a folder.
    """
    pins: dict[Path, PinnedVersion | None] = {}
    found: dict[PinnedVersion | None, list[Path]] = {}
    for path in paths:
        scripts = [one for one in shell_scripts(path) if starts_job(one)] if path.is_dir() else [path]
        pinned = [(one, _nearest(one.absolute().parent, verl, pins)) for one in scripts]
        if not any(pin for _, pin in pinned):
            pinned = [(path, None)]
        for script, pin in pinned:
            found.setdefault(pin, []).append(script)
    return {pin: tuple(scripts) for pin, scripts in found.items()}


def _nearest(folder: Path, verl: Axis, known: dict[Path, PinnedVersion | None]) -> PinnedVersion | None:
    """The pin of this folder or the nearest one above it in the same repository."""
    if folder not in known:
        is_top = (folder / ".git").exists() or folder == folder.parent
        pin = _pin_in(folder, verl)
        known[folder] = pin if pin or is_top else _nearest(folder.parent, verl, known)
    return known[folder]


def _pin_in(folder: Path, verl: Axis) -> PinnedVersion | None:
    if (folder / _VERL).is_dir():
        return None
    pins = find_pins(
        folder,
        sorted(_files_in(folder)),
        {verl.name: verl},
        version_at=lambda axis, commit: commit_version(axis, commit, mirror_folders()),
    )
    return next((ones[verl.name] for ones in pins.values() if verl.name in ones), None)


def _files_in(folder: Path) -> Iterator[str]:
    """The names of the files that can pin; outside a repository, only the file that recipes have for that."""
    if not any((up / ".git").exists() for up in (folder, *folder.parents)):
        yield from [REQUIRED_VERL] if (folder / REQUIRED_VERL).is_file() else []
        return
    for file in folder.iterdir():
        if file.is_file() and not is_for_other_hardware(PurePosixPath(file.name)):
            yield file.name
