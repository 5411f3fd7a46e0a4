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
# The members of `FileState`.
_Metadata = tuple[int, int, int, int, int]


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


def read_states(folders: Iterable[WatchedFolder]) -> dict[str, FileState]:
    """The metadata of everything in these folders; a missing folder has no files."""
    with gc_paused():
        return {path: FileState._make(state) for path, state in _scan(folders)}


def _scan(folders: Iterable[WatchedFolder]) -> Iterator[tuple[str, _Metadata]]:
    # Plain tuples, because there are 40,000 files.
    for folder in folders:
        if folder.only:
            for name in folder.only:
                path = os.path.join(folder.path, name)  # noqa: PTH118
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    yield path, _state(os.lstat(path))
        else:
            yield from _walk(folder.path, frozenset(folder.without))


def _walk(top: str, without: Collection[str]) -> Iterator[tuple[str, _Metadata]]:
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
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if is_folder:
                    pending.append(entry.path)
                if is_folder and without:
                    yield entry.path, (status.st_mode, 0, 0, 0, status.st_ino)
                else:
                    yield entry.path, _state(status)


def _state(status: os.stat_result) -> _Metadata:
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest_states(states: Mapping[str, _Metadata]) -> str:
    lines = sorted(
        f"{path}\0{mode} {size} {mtime} {ctime} {inode}"
        for path, (mode, size, mtime, ctime, inode) in states.items()
    )
    return digest_bytes("\0\0".join(lines).encode("utf-8", "surrogateescape"))


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


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The first line of a stored manifest. states: digest of the metadata of all files."""

    folders: tuple[WatchedFolder, ...]
    states: str


_HEADER: TypeAdapter[_Header] = TypeAdapter(_Header)
_ENTRIES: TypeAdapter[dict[str, FileEntry]] = TypeAdapter(dict[str, FileEntry])


def write_manifest(manifest: FileManifest, path: Path) -> str:
    """Write the manifest atomically; returns the digest of the file."""
    header = _Header(folders=manifest.folders, states=_digest_states(manifest.states))
    entries = {name: [list(entry.state), entry.content] for name, entry in manifest.entries.items()}
    data = b"\n".join((_HEADER.dump_json(header), json.dumps(entries, separators=(",", ":")).encode()))
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
    return digest_bytes(data)


def read_manifest(path: Path, digest: str) -> FileManifest:
    """The manifest in a file with this digest; ManifestError if there is no such file."""
    header, entries = _read(path, digest)
    try:
        with gc_paused():
            return FileManifest(folders=header.folders, entries=_ENTRIES.validate_json(entries))
    except ValidationError as error:
        raise _other_form(path) from error


def has_same_states(path: Path, digest: str) -> bool:
    """Whether all metadata is as in the manifest in a file with this digest; ManifestError as before.

    This is quicker than `find_changes`, which has to know what changed.
    """
    header, _ = _read(path, digest)
    with gc_paused():
        return _digest_states(dict(_scan(header.folders))) == header.states


def _read(path: Path, digest: str) -> tuple[_Header, bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"the list of its files, {path}, cannot be read: {error.strerror}") from error
    if digest_bytes(data) != digest:
        raise ManifestError(f"the list of its files, {path}, is not the one that its build wrote")
    header, _, entries = data.partition(b"\n")
    try:
        return _HEADER.validate_json(header), entries
    except ValidationError as error:
        raise _other_form(path) from error


def _other_form(path: Path) -> ManifestError:
    return ManifestError(f"the list of its files, {path}, has another form")
