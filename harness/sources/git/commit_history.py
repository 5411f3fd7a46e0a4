"""The commits of a range, and the content of selected paths in each; equal folders are read only once.

pygit2 is imported in the functions that use it, as in `git_repository.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import InputError, Location
from harness.serialisation import JsonValue
from harness.sources.git.git_repository import Repository

FOLDER = "040000"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit: ids in full, the author's name and date (ISO 8601), the first line of the message."""

    id: str
    parents: tuple[str, ...]
    tree: str
    date: str
    subject: str
    author: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Id, date and subject."""
        return {"commit": self.id, "date": self.date, "subject": self.subject}


class PathEntry(NamedTuple):
    """The entry at a path: mode and object id; for a folder `FOLDER` and no id."""

    mode: str
    id: str


_FOLDER = PathEntry(mode=FOLDER, id="")


def commits_in(repository: Repository, revisions: str) -> tuple[Commit, ...]:
    """The commits of `A..B` (in B, not in A) or of `B`, newest first, every commit after its children.

    InputError if there are none.
    """
    import pygit2

    if "..." in revisions:
        raise InputError(f"{revisions!r} is not a range of commits", fix="write a range with two dots: A..B")
    hidden, dots, newest = revisions.rpartition("..")
    walker = repository.objects.walk(
        pygit2.Oid(hex=repository.commit(newest or "HEAD")),
        pygit2.enums.SortMode.TIME | pygit2.enums.SortMode.TOPOLOGICAL,
    )
    if dots:
        walker.hide(pygit2.Oid(hex=repository.commit(hidden or "HEAD")))
    commits = tuple(_commit(raw) for raw in walker)
    if _is_cut_off(repository, commits):
        raise InputError(
            f"the history of {revisions} is not in this repository",
            where=Location(repository.path),
            why="it is a shallow clone, or a mirror of which only some commits were fetched",
            fix="run `npu-matrix mirrors update`, or `git fetch --unshallow` in a clone of your own",
        )
    if not commits:
        raise InputError(
            f"the range {revisions} has no commits",
            where=Location(repository.path),
            fix="write the older revision first: OLD..NEW",
        )
    return commits


def _is_cut_off(repository: Repository, commits: Iterable[Commit]) -> bool:
    """Whether a shallow clone lacks the parents of one of these commits."""
    if not repository.objects.is_shallow:
        return False
    lines = Path(repository.objects.path, "shallow").read_text("ascii", "replace").split()
    return not {commit.id for commit in commits}.isdisjoint(lines)


def one_commit(repository: Repository, revision: str) -> Commit:
    """One commit by any revision name; InputError if it does not exist."""
    return _commit(repository.objects[repository.commit(revision)])


def _commit(raw: Any) -> Commit:
    author = raw.author
    zone = timezone(timedelta(minutes=author.offset))
    try:
        date = datetime.fromtimestamp(author.time, zone).isoformat()
    except (OverflowError, ValueError, OSError):
        date = "unknown"
    return Commit(
        id=str(raw.id),
        parents=tuple(str(parent) for parent in raw.parent_ids),
        tree=str(raw.tree_id),
        date=date,
        author=author.raw_name.decode("utf-8", "replace"),
        subject=raw.raw_message.decode("utf-8", "replace").strip().split("\n")[0],
    )


@dataclass
class _Node:
    """One component of a selected path."""

    number: int
    children: dict[str, _Node] = field(default_factory=dict)


class PathFinder:
    """Looks up selected paths in many trees, each distinct folder only once."""

    def __init__(self, repository: Repository, paths: Iterable[str]) -> None:
        self._objects = repository.objects
        self._count = 0
        self._root = self._node()
        self._known: dict[tuple[bytes, int], Mapping[str, PathEntry]] = {}
        self._alike: dict[tuple[int | str, ...], Mapping[str, PathEntry]] = {}
        for path in paths:
            node = self._root
            for part in path.split("/"):
                if part not in node.children:
                    node.children[part] = self._node()
                node = node.children[part]

    def _node(self) -> _Node:
        self._count += 1
        return _Node(number=self._count)

    def find(self, tree: str) -> Mapping[str, PathEntry]:
        """The entries at all selected paths and their parent folders, in the tree with this id.

        Trees with equal entries give the same object.
        """
        import pygit2

        return self._look(pygit2.Oid(hex=tree), self._root)

    def _look(self, tree: Any, node: _Node) -> Mapping[str, PathEntry]:
        key = (tree.raw, node.number)
        known = self._known.get(key)
        if known is not None:
            return known
        folder = self._objects[tree]
        entries: dict[str, PathEntry] = {}
        parts: list[int | str] = [node.number]
        for name, child in node.children.items():
            try:
                entry = folder[name]
            except KeyError:
                continue
            if entry.type_str == "tree":
                inside = self._look(entry.id, child)
                entries[name] = _FOLDER
                entries.update((f"{name}/{below}", standing) for below, standing in inside.items())
                parts += [name, id(inside)]
            elif entry.type_str == "blob":
                entries[name] = PathEntry(mode=f"{int(entry.filemode):06o}", id=str(entry.id))
                parts += [name, entries[name].mode, entries[name].id]
        self._known[key] = self._alike.setdefault(tuple(parts), entries)
        return self._known[key]
