"""Environments nobody uses any more: what they hold, and their removal."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from harness.builds.environment import FINISHED


@dataclass(frozen=True, kw_only=True)
class StoredEnvironment:
    """An environment folder: its digest, whether its build finished, and what removing it would free.

    Files that are also linked from elsewhere (the installer's cache, another environment) free nothing.
    """

    digest: str
    path: Path
    finished: bool
    bytes_freed: int


def stored_environments(cache: Path) -> tuple[StoredEnvironment, ...]:
    """Every environment below `cache`, by digest."""
    return tuple(
        StoredEnvironment(
            digest=folder.name,
            path=folder,
            finished=(folder / FINISHED).is_file(),
            bytes_freed=sum(_freed(folder)),
        )
        for folder in sorted((cache / "cells").glob("*"))
        if folder.is_dir()
    )


def remove_environment(environment: StoredEnvironment, in_use: Collection[str] = ()) -> str:
    """Remove it and return "", or say why it stays: an outcome builds upon it, or it is being built."""
    if environment.digest in in_use:
        return "an outcome builds upon it"
    lock = filelock.FileLock(environment.path.with_suffix(".lock"), timeout=0)
    try:
        with lock:
            # Unfinished first: a removal that is cut short must not leave what looks whole.
            (environment.path / FINISHED).unlink(missing_ok=True)
            shutil.rmtree(environment.path)
    except filelock.Timeout:
        return "it is being built"
    except OSError as error:
        return str(error)
    return ""


def _freed(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            yield status.st_size if status.st_nlink == 1 else 0
