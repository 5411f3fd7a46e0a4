"""Trees of files: the protocol `Tree`, with implementations for changed trees and for folders."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.digest import digest_bytes, digest_json
from harness.errors import InputError, Location

REGULAR = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
MAX_FILE_BYTES = 256 << 20
# NAME_MAX and PATH_MAX of Linux's limits.h. Archives can contain longer names, folders cannot.
LONGEST_NAME = 255
LONGEST_PATH = 4096


class Tree(Protocol):
    """Files by their POSIX path relative to the root. Reading does not follow symbolic links."""

    @property
    def label(self) -> str:
        """The name of this tree in messages."""

    def paths(self) -> Iterator[str]:
        """Every file's path, in no particular order."""

    def mode(self, path: str) -> str | None:
        """`REGULAR`, `EXECUTABLE` or `SYMLINK`; None if there is no such file."""

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""

    def read(self, path: str) -> bytes:
        """The file's bytes; for a symbolic link its target. KeyError if there is no such file."""


class HasBlobs(Protocol):
    """A source of old file contents by git blob id, full or abbreviated."""

    def blob(self, blob_id: str) -> bytes | None:
        """The content, or None if it is not available or the abbreviated id is ambiguous."""


def blob_id(data: bytes) -> str:
    """The git blob id of this content: SHA-1 of a header and the bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def tree_digest(tree: Tree) -> str:
    """A digest of every file's path, mode and content, independent of their order."""
    return digest_json(
        [[path, tree.mode(path), digest_bytes(tree.read(path))] for path in sorted(tree.paths())]
    )


def path_problem(path: str) -> str:
    """Why this path must not be written, or "". The rules are those of git's path check for all systems."""
    if not path:
        return "an empty path"
    if "\0" in path:
        return "a NUL in the path"
    if path.startswith(("/", "\\")) or (len(path) > 1 and path[1] == ":"):
        return "an absolute path"
    if len(path.encode("utf-8", "surrogatepass")) >= LONGEST_PATH:
        return f"a path of {LONGEST_PATH} bytes or more"
    for part in path.replace("\\", "/").split("/"):
        if part in {"", ".", ".."}:
            return f"the path component {part!r}"
        if len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
            return f"a name of more than {LONGEST_NAME} bytes"
        if part.rstrip(" .").lower() in {".git", "git~1"}:
            return "a path into .git"
    return ""


def link_above(tree: Tree, path: str) -> str | None:
    """The symbolic link among the parent folders of `path`, if any: it could lead out of the tree."""
    parts = path.split("/")
    for end in range(1, len(parts)):
        parent = "/".join(parts[:end])
        if tree.mode(parent) == SYMLINK:
            return parent
    return None


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """One file's content and mode."""

    data: bytes
    mode: str = REGULAR


@dataclass(frozen=True, kw_only=True)
class OverlayTree:
    """A tree in which some files are replaced, or removed (None)."""

    base: Tree
    changes: Mapping[str, TreeFile | None]

    @property
    def label(self) -> str:
        """The label of the base tree."""
        return self.base.label

    def paths(self) -> Iterator[str]:
        """Every file's path."""
        yield from (path for path in self.base.paths() if path not in self.changes)
        yield from (path for path, file in self.changes.items() if file is not None)

    def mode(self, path: str) -> str | None:
        """The file's mode, or None."""
        if path in self.changes:
            file = self.changes[path]
            return file.mode if file else None
        return self.base.mode(path)

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""
        inside = f"{path}/"
        changed = [file is not None for other, file in self.changes.items() if other.startswith(inside)]
        return any(changed) or (not changed and self.base.is_folder(path))

    def read(self, path: str) -> bytes:
        """The file's bytes; KeyError if there is no such file."""
        if path not in self.changes:
            return self.base.read(path)
        file = self.changes[path]
        if file is None:
            raise KeyError(path)
        return file.data


@dataclass(frozen=True, kw_only=True)
class DirectoryTree:
    """A working directory or a folder of installed packages, without `.git` and compiled Python."""

    root: Path

    @property
    def label(self) -> str:
        """The folder."""
        return str(self.root)

    def paths(self) -> Iterator[str]:
        """Every file's path. Symbolic links are listed, but not followed."""
        for folder, names, files in os.walk(self.root):
            here = Path(folder)
            linked = [name for name in names if (here / name).is_symlink()]
            names[:] = [name for name in names if name not in {".git", "__pycache__"} and name not in linked]
            for name in [*files, *linked]:
                yield (here / name).relative_to(self.root).as_posix()

    def mode(self, path: str) -> str | None:
        """The file's mode, or None; None also behind a symbolic link or outside the folder."""
        if path_problem(path):
            return None
        current = self.root
        parts = path.split("/")
        for number, part in enumerate(parts, start=1):
            current /= part
            try:
                found = current.lstat().st_mode
            except OSError:
                return None
            last = number == len(parts)
            if stat.S_ISLNK(found):
                return SYMLINK if last else None
            if last and stat.S_ISREG(found):
                return EXECUTABLE if found & stat.S_IXUSR else REGULAR
        return None

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""
        folder = self.root / path
        return not path_problem(path) and folder.is_dir() and not folder.is_symlink()

    def read(self, path: str) -> bytes:
        """The file's bytes; KeyError if there is no such file, InputError if it is too large."""
        mode = self.mode(path)
        if mode is None:
            raise KeyError(path)
        file = self.root / path
        if mode == SYMLINK:
            return os.fsencode(file.readlink())
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InputError("this file is too large", where=Location(file), why="over 256 MiB")
        return file.read_bytes()
