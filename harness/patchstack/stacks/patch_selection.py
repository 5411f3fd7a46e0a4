"""Patch files of any folder, whatever its layout."""

from __future__ import annotations

from pathlib import Path

from harness.errors import InputError, Location
from harness.patchstack.apply.classify import Readable, read_patch

_SUFFIXES = (".patch", ".diff")


def collect_patches(folder: Path) -> tuple[Readable, ...]:
    """Every patch file below `folder` (or the one file it is), named by its path below it, in order of names.

    InputError when there is none, or one cannot be read.
    """
    if folder.is_file():
        return (read_patch(folder.name, _read(folder)),)
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _SUFFIXES and file.is_file() and not file.is_symlink()
    )
    if not files:
        raise InputError(
            "there are no patches here",
            where=Location(folder),
            fix=f"give a folder with {' or '.join('*' + suffix for suffix in _SUFFIXES)} files in it",
        )
    return tuple(read_patch(file.relative_to(folder).as_posix(), _read(file)) for file in files)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError("this patch cannot be read", where=Location(file), why=str(error)) from error
