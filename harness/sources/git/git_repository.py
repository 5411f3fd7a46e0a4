"""Commits, trees and blobs of a git repository, read from its object store: no checkout, no hooks.

pygit2 is imported in the functions that use it, because planning imports this module and pygit2 takes 0.1 s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location
from harness.sources.git.absent_objects import AbsentObjectError, fetch_absent_objects
from harness.sources.tree import EXECUTABLE, REGULAR, SYMLINK

_MODES = {0o100644: REGULAR, 0o100755: EXECUTABLE, 0o120000: SYMLINK, 0o100664: REGULAR}
#: git itself does not write shorter abbreviations; they would often be ambiguous.
MIN_ABBREVIATION = 7
FULL_ID = 40
#: In a partial clone of the cache, a commit whose files are all here has a reference of this name.
COMPLETE = "refs/npu-matrix/complete/"
_ID = re.compile(rf"[0-9a-f]{{{MIN_ABBREVIATION},{FULL_ID}}}")


@dataclass(frozen=True)
class Repository:
    """A local repository, bare or not."""

    path: Path

    @cached_property
    def objects(self) -> Any:
        """The opened object store; InputError if the folder is not a repository."""
        import pygit2

        try:
            return pygit2.Repository(str(self.path))
        except (pygit2.GitError, KeyError) as error:
            raise InputError(
                "this folder is not a git repository that can be read",
                where=Location(self.path),
                why=str(error),
                fix="give the folder of a clone or of a bare mirror",
            ) from error

    def commit(self, revision: str) -> str:
        """The full id of a commit; InputError if the revision is unknown or ambiguous.

        A full or abbreviated id is that of an object, also if a branch or tag has the same name.
        """
        import pygit2

        try:
            commit = self._object(revision).peel(pygit2.Commit)
        except (KeyError, ValueError, pygit2.GitError) as error:
            raise InputError(
                f"revision {revision!r} is not in this repository",
                where=Location(self.path),
                why=str(error),
                fix="fetch it into the mirror, or check the spelling",
            ) from error
        return str(commit.id)

    def _object(self, revision: str) -> Any:
        # git prefers a branch or tag, so that whoever can push one could replace a commit that is pinned.
        if _ID.fullmatch(revision):
            with contextlib.suppress(KeyError):
                return self.objects[revision]
        return self.objects.revparse_single(revision)

    def has(self, commit: str) -> bool:
        """Whether the repository has a commit with this full or abbreviated id."""
        import pygit2

        try:
            return isinstance(self.objects[commit], pygit2.Commit)
        except (KeyError, ValueError, pygit2.GitError):
            return False

    def has_ref(self, name: str) -> bool:
        """Whether the repository has a reference with this full name, or HEAD."""
        return name in self.objects.references

    def has_tag(self, name: str) -> bool:
        """Whether the repository has a tag with this name."""
        return f"refs/tags/{name}" in self.objects.references

    def tags(self) -> tuple[str, ...]:
        """The names of all tags."""
        prefix = "refs/tags/"
        return tuple(name.removeprefix(prefix) for name in self.objects.references if name.startswith(prefix))

    def nearest_tag(self, commit: str) -> tuple[str, int] | None:
        """The nearest tag at or before a commit, and the number of commits since then, as `git describe`."""
        import pygit2

        try:
            found = self.objects.describe(
                commit, describe_strategy=pygit2.enums.DescribeStrategy.TAGS, always_use_long_format=True
            )
        except (KeyError, pygit2.GitError):  # No tag, or a shallow clone.
            return None
        name, commits, _commit = found.rsplit("-", 2)
        return name, int(commits)

    def blob(self, blob_id: str) -> bytes | None:
        """A file's content by its blob id, or None if it is missing or the abbreviated id is ambiguous.

        A partial clone fetches it if it is a mirror of the cache; AbsentObjectError if that is not possible.
        """
        import pygit2

        if len(blob_id) < MIN_ABBREVIATION:
            return None
        try:
            kind, data = self._read(blob_id)
        except (KeyError, ValueError, pygit2.GitError):
            return None
        return bytes(data) if kind == pygit2.enums.ObjectType.BLOB else None

    def fetch_absent(self, blob_ids: Iterable[str]) -> None:
        """Fetch those of these contents (full ids) that a partial clone lacks, in one request.

        AbsentObjectError if that is not possible. Nothing happens in a full clone.
        """
        if self._promisors:
            absent = sorted({one for one in blob_ids if one not in self.objects})
            if absent:
                fetch_absent_objects(self.path, absent, self._promisors)

    def _read(self, blob_id: str) -> tuple[Any, Any]:
        """Type and content of an object; a partial clone is completed."""
        import pygit2

        name = pygit2.Oid(hex=blob_id) if len(blob_id) == FULL_ID else blob_id
        try:
            found: tuple[Any, Any] = self.objects.read(name)
        except (KeyError, pygit2.GitError):
            remotes = self._promisors if len(blob_id) == FULL_ID else ()
            if not remotes or not fetch_absent_objects(self.path, [blob_id], remotes):
                raise
            found = self.objects.read(name)
        return found

    def is_complete(self, commit: str) -> bool:
        """Whether all files of a commit are here: the clone is a full one, or they were fetched."""
        return not self._promisors or self.has_ref(f"{COMPLETE}{self.commit(commit)}")

    @cached_property
    def _promisors(self) -> tuple[str, ...]:
        """The remotes from which a partial clone can get what it lacks; () for a full clone."""
        config = self.objects.config
        keys = [entry.name for entry in config if re.fullmatch(r"remote\..*\.promisor", entry.name)]
        return tuple(
            dict.fromkeys(key[len("remote.") : -len(".promisor")] for key in keys if config.get_bool(key))
        )

    def tree(self, revision: str) -> GitTree:
        """The files of one commit."""
        return GitTree(repository=self, commit=self.commit(revision))


@dataclass(frozen=True, kw_only=True)
class GitTree:
    """The files of one commit."""

    repository: Repository
    commit: str

    @property
    def label(self) -> str:
        """The abbreviated commit id."""
        return self.commit[:12]

    @cached_property
    def _root(self) -> Any:
        return self.repository.objects[self.commit].tree

    def paths(self) -> Iterator[str]:
        """Every file's path; submodules are not part of the tree."""
        yield from self._walk(self._root, "")

    def _walk(self, tree: Any, prefix: str) -> Iterator[str]:
        for entry in tree:
            path = f"{prefix}{entry.name}"
            if entry.type_str == "tree":
                yield from self._walk(entry, f"{path}/")
            elif entry.type_str == "blob":
                yield path

    def blob_ids(self) -> Iterator[str]:
        """The ids of the contents of all files, some of them several times."""
        folders = [self._root]
        while folders:
            for entry in folders.pop():
                if entry.type_str == "tree":
                    folders.append(entry)
                elif entry.type_str == "blob":
                    yield str(entry.id)

    def _entry(self, path: str) -> Any:
        try:
            entry = self._root[path]
        except (KeyError, ValueError):
            return None
        return entry if entry.type_str == "blob" else None

    def object_id(self, path: str) -> str | None:
        """The git id of the file or folder at a path; None if there is none."""
        try:
            return str(self._root[path].id)
        except (KeyError, ValueError):
            return None

    def mode(self, path: str) -> str | None:
        """The file's mode, or None."""
        entry = self._entry(path)
        return None if entry is None else _MODES.get(int(entry.filemode), REGULAR)

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""
        try:
            return bool(self._root[path].type_str == "tree")
        except (KeyError, ValueError):
            return False

    def read(self, path: str) -> bytes:
        """The file's bytes as git stores them; KeyError if there is no such file.

        AbsentObjectError if the repository does not have its content.
        """
        entry = self._entry(path)
        if entry is None:
            raise KeyError(path)
        data = self.repository.blob(str(entry.id))
        if data is None:
            raise AbsentObjectError(
                f"{path} of commit {self.label} is not in this repository",
                where=Location(self.repository.path),
                why=f"the object {entry.id} is missing: the clone is damaged",
                fix="use a full mirror",
            )
        return data

    def blob(self, blob_id: str) -> bytes | None:
        """Old contents of this repository by blob id."""
        return self.repository.blob(blob_id)
