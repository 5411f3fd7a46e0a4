"""The manifest of an environment: every file with its digest and its metadata at the end of the build.

The manifest is stored outside the environment, and the outcome of the check `environment` has its digest.
A later comparison reads the metadata of all files and the content of only those whose metadata differs: a
program can restore the size, the modification time and the mode of a file that it edited, but not its change
time (`st_ctime`, which the kernel sets).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from harness.digest import digest_bytes, digest_file
from harness.gc_pause import gc_paused

SHOWN_PATHS = 5


class FileState(NamedTuple):
    """The metadata of a file, a symbolic link or a folder, as `lstat` returns it."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


States = Mapping[str, FileState]


class FileEntry(NamedTuple):
    """A file of a manifest. content: its SHA-256, the target of a symbolic link, "" for a folder."""

    state: FileState
    content: str


class ManifestError(Exception):
    """A manifest is missing, or it is not the one that was written."""


@dataclass(frozen=True, kw_only=True)
class WatchedFolder:
    """A folder whose files belong to an environment.

    without: names of folders that are left out at any depth; then the size and times of all folders are left
    out too, because they show what others do there. only: the files that belong to it, relative to `path`,
    whether they exist or not; empty for all.
    """

    path: str
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileManifest:
    """Absolute path -> entry, for every file, symbolic link and watched folder in `folders`."""

    folders: tuple[WatchedFolder, ...]
    entries: Mapping[str, FileEntry]

    @property
    def states(self) -> dict[str, FileState]:
        """The metadata of each path."""
        return {path: entry.state for path, entry in self.entries.items()}


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """How files differ from a manifest, as sorted paths.

    edited: other content, type or permissions. touched: the metadata differs, but the content is the same.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    touched: tuple[str, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.edited)

    def __str__(self) -> str:
        parts = (("edited", self.edited), ("added", self.added), ("removed", self.removed))
        return "; ".join(f"{what}: {path_list(paths)}" for what, paths in parts if paths)


def path_list(paths: Collection[str]) -> str:
    """The first of these paths, and how many more there are."""
    shown = ", ".join(list(paths)[:SHOWN_PATHS])
    return shown + (f" and {len(paths) - SHOWN_PATHS} more" if len(paths) > SHOWN_PATHS else "")


@gc_paused()
def read_states(folders: Iterable[WatchedFolder]) -> dict[str, FileState]:
    """The metadata of everything in these folders; a missing folder has no files."""
    states: dict[str, FileState] = {}
    for folder in folders:
        if folder.only:
            for name in folder.only:
                path = os.path.join(folder.path, name)  # noqa: PTH118 - 40,000 paths in a fraction of a second
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    states[path] = _state(os.lstat(path))
        else:
            states.update(_walk(folder.path, frozenset(folder.without)))
    return states


def _walk(top: str, without: Collection[str]) -> Iterator[tuple[str, FileState]]:
    pending = [top]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except FileNotFoundError:
            continue
        with entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name in without:
                    continue
                try:
                    state = _state(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                if is_folder:
                    pending.append(entry.path)
                    if without:
                        state = state._replace(size=0, mtime_ns=0, ctime_ns=0)
                yield entry.path, state


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def make_manifest(folders: Iterable[WatchedFolder]) -> FileManifest:
    """Read all files in these folders. OSError if a file cannot be read."""
    folders = tuple(folders)
    states = read_states(folders)
    contents = _contents(states)
    return FileManifest(
        folders=folders, entries={path: FileEntry(state, contents[path]) for path, state in states.items()}
    )


def extend_manifest(manifest: FileManifest) -> FileManifest:
    """The manifest with the present metadata. Only files whose metadata differs are read again."""
    states = read_states(manifest.folders)
    known = {
        path: entry.content for path, entry in manifest.entries.items() if states.get(path) == entry.state
    }
    contents = known | _contents({path: state for path, state in states.items() if path not in known})
    return FileManifest(
        folders=manifest.folders,
        entries={path: FileEntry(state, contents[path]) for path, state in states.items()},
    )


def _contents(states: States) -> dict[str, str]:
    # Threads would make this slower: most of the time is spent in Python, not in computing digests.
    return {path: _content(path, state) for path, state in states.items()}


def _content(path: str, state: FileState) -> str:
    if stat.S_ISREG(state.mode):
        return digest_file(Path(path))
    return os.readlink(path) if stat.S_ISLNK(state.mode) else ""  # noqa: PTH115


def find_changes(manifest: FileManifest, *, full: bool = False) -> FileChanges:
    """Compare the files with the manifest. full: read every file, even if its metadata is the same."""
    return classify_changes(manifest, read_states(manifest.folders), full=full)


def classify_changes(manifest: FileManifest, states: States, *, full: bool = False) -> FileChanges:
    """Compare present metadata with the manifest, reading the files whose metadata differs."""
    entries = manifest.entries
    added = [path for path in states if path not in entries]
    removed = [path for path in entries if path not in states]
    suspects = {
        path: state
        for path, state in states.items()
        if path in entries and (full or state != entries[path].state)
    }
    edited, touched = [], []
    contents = _contents(suspects)
    for path, state in suspects.items():
        entry = entries[path]
        if state.mode != entry.state.mode or contents[path] != entry.content:
            edited.append(path)
        elif state != entry.state:
            touched.append(path)
    return FileChanges(
        added=tuple(sorted(added)),
        removed=tuple(sorted(removed)),
        edited=tuple(sorted(edited)),
        touched=tuple(sorted(touched)),
    )


_STORED: TypeAdapter[FileManifest] = TypeAdapter(FileManifest)


def write_manifest(manifest: FileManifest, path: Path) -> str:
    """Write the manifest atomically; returns the digest of the file."""
    entries = {name: [list(entry.state), entry.content] for name, entry in manifest.entries.items()}
    folders = [
        {"path": folder.path, "without": folder.without, "only": folder.only} for folder in manifest.folders
    ]
    data = json.dumps({"folders": folders, "entries": entries}, separators=(",", ":")).encode()
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
    return digest_bytes(data)


@gc_paused()
def read_manifest(path: Path, digest: str) -> FileManifest:
    """The manifest in a file with this digest; ManifestError if there is no such file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"the list of its files, {path}, cannot be read: {error.strerror}") from error
    if digest_bytes(data) != digest:
        raise ManifestError(f"the list of its files, {path}, is not the one that its build wrote")
    try:
        return _STORED.validate_json(data)
    except ValidationError as error:
        raise ManifestError(f"the list of its files, {path}, has another form") from error
