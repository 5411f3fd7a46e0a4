"""Finds the commits between the runs before and after a verdict turned, in this checkout and in mirrors.

Nothing is fetched: a commit that is not available locally is named as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from harness.errors import InputError
from harness.package import PACKAGE_ROOT
from harness.report.model.commit_notes import (
    MOST_COMMITS,
    CommitNote,
    CommitNotes,
    CommitRange,
    Revisions,
    own_revisions,
)
from harness.report.model.turning_points import ChangedPart, Turn, TurnCause
from harness.settings import Settings
from harness.sources.git.commit_history import Commit, commits_in
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror, mirror_folders

#: How many ranges are searched, most recent turns first.
MOST_RANGES = 50


def commits_of_turns(settings: Settings, turns: Iterable[Turn]) -> CommitNotes:
    """The commits that can have changed the inputs of checks whose verdict turned."""
    explained = sorted(
        (turn for turn in turns if turn.cause is TurnCause.INPUTS), key=lambda turn: -turn.after.time
    )
    own = dict.fromkeys(pair for turn in explained if all(pair := own_revisions(turn)) and pair[0] != pair[1])
    upstream = dict.fromkeys(pair for turn in explained for pair in turn.difference.commits)
    mirrors = mirror_folders()
    return CommitNotes(
        own={pair: _own_range(settings, pair) for pair in islice(own, MOST_RANGES)},
        upstream={pair: _upstream_range(mirrors, pair) for pair in islice(upstream, MOST_RANGES)},
    )


def _own_range(settings: Settings, pair: Revisions) -> CommitRange:
    import pygit2

    found = pygit2.discover_repository(str(settings.root))
    if found is None:
        return CommitRange(missing="this folder is no checkout of a git repository")
    repository = Repository(Path(found))
    work_tree = Path(repository.objects.workdir or settings.root).resolve()
    paths = {
        part: path.relative_to(work_tree).as_posix()
        for part, path in _paths(settings).items()
        if path.is_relative_to(work_tree) and path != work_tree
    }
    return _range(repository, pair, paths)


def _paths(settings: Settings) -> dict[ChangedPart, Path]:
    return {
        ChangedPart.MATRIX: settings.path("matrix").resolve(),
        ChangedPart.PATCHES: (settings.root / "patches").resolve(),
        ChangedPart.CODE: PACKAGE_ROOT.resolve(),
    }


def _upstream_range(mirrors: Sequence[Path], pair: Revisions) -> CommitRange:
    repository = find_mirror(mirrors, pair[1])
    if repository is None:
        return CommitRange(missing=f"no mirror has the commit {pair[1][:12]}: set NPU_MATRIX_MIRRORS")
    name = repository.path.name.removesuffix(".git") or repository.path.parent.name
    found = _range(repository, pair, {})
    return CommitRange(commits=found.commits, more=found.more, upstream=name, missing=found.missing)


def _range(repository: Repository, pair: Revisions, paths: Mapping[ChangedPart, str]) -> CommitRange:
    try:
        commits = commits_in(repository, f"{pair[0]}..{pair[1]}")
    except InputError as error:
        return CommitRange(missing=f"the commits {pair[0][:12]}..{pair[1][:12]} cannot be read: {error}")
    notes = [note for commit in commits if (note := _note(repository, commit, paths)).parts or not paths]
    return CommitRange(commits=tuple(notes[:MOST_COMMITS]), more=max(0, len(notes) - MOST_COMMITS))


def _note(repository: Repository, commit: Commit, paths: Mapping[ChangedPart, str]) -> CommitNote:
    parents = commit.parents if len(commit.parents) < 2 else ()  # a merge changes nothing by itself
    trees = [repository.objects[parent].tree for parent in parents]
    tree = repository.objects[commit.id].tree
    parts = (part for part, path in paths.items() if any(_at(tree, path) != _at(one, path) for one in trees))
    return CommitNote(
        id=commit.id, author=commit.author, date=commit.date, subject=commit.subject, parts=frozenset(parts)
    )


def _at(tree: object, path: str) -> str:
    try:
        return str(tree[path].id)  # type: ignore[index]  # an untyped object of pygit2
    except KeyError:
        return ""
