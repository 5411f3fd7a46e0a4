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
_WHO = ("npu-matrix", "npu-matrix@localhost")


@dataclass(frozen=True, kw_only=True)
class WorktreeFile:
    """One merged file: its three sides (None: unknown or no file), and the merge with conflict markers."""

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
    made: Any = pygit2.init_repository(str(folder), initial_head=branch)
    inside = Path(made.path)
    (inside / "objects" / "info" / "alternates").write_text(f"{_objects(repository)}\n", encoding="utf-8")
    (inside / "info").mkdir(exist_ok=True)
    (inside / "info" / "attributes").write_text(_ATTRIBUTES, encoding="utf-8")
    made = pygit2.Repository(str(folder))
    made.config["core.autocrlf"] = "false"
    base = made[commit]
    made.checkout_tree(base, strategy=pygit2.enums.CheckoutStrategy.FORCE)
    made.references.create(f"refs/heads/{branch}", base.id)
    made.index.read_tree(base.peel(pygit2.Tree))
    if earlier:
        _commit_earlier(made, branch, folder, earlier)
    for path, one in files.items():
        _put(folder / path, one.merged)
        _stage(made, path, one)
    made.index.write()


def _objects(repository: Repository) -> Path:
    inside = Path(repository.objects.path)
    common = inside / "commondir"
    if common.is_file():
        inside = (inside / common.read_text(encoding="utf-8").strip()).resolve()
    return (inside / "objects").absolute()


def _commit_earlier(made: Any, branch: str, folder: Path, earlier: Mapping[str, TreeFile | None]) -> None:
    for path, file in earlier.items():
        if file is None:
            if path in made.index:
                (folder / path).unlink(missing_ok=True)
                made.index.remove(path)
            continue
        _put(folder / path, file.data)
        mode = pygit2.enums.FileMode.BLOB
        if file.mode == EXECUTABLE:
            (folder / path).chmod(0o755)
            mode = pygit2.enums.FileMode.BLOB_EXECUTABLE
        made.index.add(pygit2.IndexEntry(path, made.create_blob(file.data), mode))
    who = pygit2.Signature(*_WHO)
    head = made.references[f"refs/heads/{branch}"].target
    message = "Apply the patches before this one\n"
    made.create_commit(f"refs/heads/{branch}", who, who, message, made.index.write_tree(), [head])


def _stage(made: Any, path: str, one: WorktreeFile) -> None:
    def entry(data: bytes | None) -> Any:
        blob = pygit2.enums.FileMode.BLOB
        return None if data is None else pygit2.IndexEntry(path, made.create_blob(data), blob)

    if not one.conflicts:
        made.index.add(entry(one.merged))
    elif one.ours is not None or one.theirs is not None:
        made.index.add_conflict(entry(one.base), entry(one.ours), entry(one.theirs))


def _put(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def changed_files(folder: Path) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Path -> content at HEAD and in the work tree (None: no file) of every file that differs.

    Files that git ignores are skipped. InputError if the folder is not a work tree.
    """
    try:
        made = pygit2.Repository(str(folder))
        head: Any = made.head.peel(pygit2.Tree)
        states = made.status()
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
