"""A git work tree of a commit with a partly merged patch. Its objects are shared with the original clone.

The clone itself is not modified. Files are checked out byte for byte, regardless of git attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pygit2

from harness.errors import InputError, Location
from harness.sources.git.git_repository import Repository
from harness.sources.tree import EXECUTABLE, TreeFile

#: Converted line endings or keywords would change the files that the patch is made from.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
_AUTHOR = ("npu-matrix", "npu-matrix@localhost")


@dataclass(frozen=True, kw_only=True)
class WorktreeFile:
    """One merged file: its three sides (None: unknown, or no file), and the merge with conflict markers."""

    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    merged: bytes
    conflicts: bool


def make_worktree(
    folder: Path,
    repository: Repository,
    commit: str,
    branch: str,
    earlier: Mapping[str, TreeFile | None],
    files: Mapping[str, WorktreeFile],
) -> None:
    """Check out `commit` into a new folder on a new branch, commit `earlier` on top, and write `files`.

    Files with conflicts are unmerged in the index, as after `git merge`; the others are staged.
    """
    clone: Any = pygit2.init_repository(str(folder), initial_head=branch)
    inside = Path(clone.path)
    (inside / "objects" / "info" / "alternates").write_text(f"{_objects(repository)}\n", encoding="utf-8")
    (inside / "info").mkdir(exist_ok=True)
    (inside / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    clone = pygit2.Repository(str(folder))
    clone.config["core.autocrlf"] = "false"
    base = clone[commit]
    clone.checkout_tree(base, strategy=pygit2.enums.CheckoutStrategy.FORCE)
    clone.references.create(f"refs/heads/{branch}", base.id)
    clone.index.read_tree(base.peel(pygit2.Tree))
    if earlier:
        _commit_earlier(clone, branch, folder, earlier)
    for path, merge in files.items():
        _write_file(folder / path, merge.merged)
        _stage(clone, path, merge)
    clone.index.write()


def _objects(repository: Repository) -> Path:
    inside = Path(repository.objects.path)
    common = inside / "commondir"
    if common.is_file():
        inside = (inside / common.read_text(encoding="utf-8").strip()).resolve()
    return (inside / "objects").absolute()


def _commit_earlier(clone: Any, branch: str, folder: Path, earlier: Mapping[str, TreeFile | None]) -> None:
    for path, file in earlier.items():
        if file is None:
            if path in clone.index:
                (folder / path).unlink(missing_ok=True)
                clone.index.remove(path)
            continue
        _write_file(folder / path, file.data)
        mode = pygit2.enums.FileMode.BLOB
        if file.mode == EXECUTABLE:
            (folder / path).chmod(0o755)
            mode = pygit2.enums.FileMode.BLOB_EXECUTABLE
        clone.index.add(pygit2.IndexEntry(path, clone.create_blob(file.data), mode))
    author = pygit2.Signature(*_AUTHOR)
    head = clone.references[f"refs/heads/{branch}"].target
    message = "Apply the patches before this one\n"
    clone.create_commit(f"refs/heads/{branch}", author, author, message, clone.index.write_tree(), [head])


def _stage(clone: Any, path: str, merge: WorktreeFile) -> None:
    def entry(data: bytes | None) -> Any:
        blob = pygit2.enums.FileMode.BLOB
        return None if data is None else pygit2.IndexEntry(path, clone.create_blob(data), blob)

    if not merge.conflicts:
        clone.index.add(entry(merge.merged))
    elif merge.ours is not None or merge.theirs is not None:
        clone.index.add_conflict(entry(merge.base), entry(merge.ours), entry(merge.theirs))


def _write_file(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def changed_files(folder: Path) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Path -> content at HEAD and in the work tree (None: no file) of every file that differs.

    Files that git ignores are skipped. InputError if the folder is not a work tree.
    """
    try:
        clone = pygit2.Repository(str(folder))
        head: Any = clone.head.peel(pygit2.Tree)
        states = clone.status()
    except (pygit2.GitError, KeyError) as error:
        raise InputError(
            "this is not a git work tree", where=Location(folder), why=str(error), fix="create the kit again"
        ) from error
    found: dict[str, tuple[bytes | None, bytes | None]] = {}
    for path, state in sorted(states.items()):
        file = folder / path
        if state == pygit2.enums.FileStatus.IGNORED or file.is_symlink():
            continue
        before = bytes(head[path].data) if path in head and head[path].type_str == "blob" else None
        after = file.read_bytes() if file.is_file() else None
        if before != after:
            found[path] = (before, after)
    return found
