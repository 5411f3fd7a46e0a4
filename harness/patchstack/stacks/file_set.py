"""Files that are written together: all of them, or, for example on a full disk, none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.errors import InputError, Location

_UNFINISHED = ".npu-matrix-new"


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write all files, in their order, and the folders that they need.

    Each is first written beside its place. If that fails for one, what was written is removed again, and
    InputError names the file (with the exit code of an infrastructure error if the disk is full).
    """
    folders: list[Path] = []
    beside = {file: file.with_name(file.name + _UNFINISHED) for file in files}
    try:
        for file, data in files.items():
            folders += make_folder(file.parent)
            try:
                beside[file].write_bytes(data)
            except OSError as error:
                raise InputError(
                    "this file cannot be written, and nothing was", where=Location(file), why=str(error)
                ) from error
        for file in files:
            beside[file].replace(file)
    except BaseException:
        _remove(beside.values(), folders)
        raise


def make_folder(folder: Path) -> list[Path]:
    """Create a folder, which may exist already; returns the new ones. InputError if it cannot be created."""
    new = [one for one in (*reversed(folder.parents), folder) if not one.is_dir()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("this folder cannot be created", where=Location(folder), why=str(error)) from error
    return new


def _remove(files: Iterable[Path], folders: list[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
