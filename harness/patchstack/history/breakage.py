"""Which commits changed the lines a patch stands on, and which one it broke at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.patchstack.apply.classify import Readable, classify, read_patch
from harness.patchstack.apply.patch_apply import Misfit, place_hunks
from harness.patchstack.apply.line_merge import Edit, edits
from harness.patchstack.apply.patch_verdict import Verdict
from harness.patchstack.format.diff import Change, FilePatch
from harness.sources.git.commit_history import Commit, one_commit
from harness.sources.git.git_repository import GitTree, Repository

#: How far back a commit that still takes a patch is looked for: years of a busy repository.
MAX_COMMITS = 20_000


@dataclass(frozen=True, kw_only=True)
class Touch:
    """A commit that changed lines of a hunk (from 1) or its context; `hunk` 0: it removed the file."""

    commit: Commit
    path: str
    hunk: int


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """How a patch came to break.

    good: the newest commit before the target that takes the patch, be it with other line endings; None when
      none does.
    taken: the patch as that commit takes it.
    broke: the commit after it, at which the patch first failed.
    touches: commits from there to the target that changed the patch's lines, oldest first.
    """

    good: Commit | None
    broke: Commit | None
    touches: tuple[Touch, ...]
    taken: Readable | None = None


def lineage(repository: Repository, readable: Readable, target: str) -> Lineage:
    """Follow first parents back from `target` to the newest commit that takes the patch, and forward."""
    patch = readable.patch
    if patch is None:
        return Lineage(good=None, broke=None, touches=())
    chain: list[Commit] = []
    known: dict[tuple[str | None, ...], Readable | None] = {}
    for commit in _first_parents(repository, target):
        tree = GitTree(repository=repository, commit=commit.id)
        key = tuple(tree.object_id(path) for path in patch.paths)
        if key not in known:
            known[key] = _taken(readable, tree)
        taken = known[key]
        if taken is not None and taken.patch is not None:
            chain.reverse()
            files = taken.patch.files
            touches = [touch for file in files for touch in _touches(repository, file, commit, chain)]
            order = {one.id: number for number, one in enumerate(chain)}
            touches.sort(key=lambda touch: (order[touch.commit.id], touch.path, touch.hunk))
            broke = chain[0] if chain else None
            return Lineage(good=commit, broke=broke, touches=tuple(touches), taken=taken)
        chain.append(commit)
    return Lineage(good=None, broke=None, touches=())


def _taken(readable: Readable, tree: GitTree) -> Readable | None:
    """The patch as a commit takes it: as it is, or re-encoded; None when it does not."""
    found = classify(readable, tree, tree, explain=False).verdict
    if found is not Verdict.LINE_ENDINGS:
        return readable if found.applies else None
    again = classify(readable, tree, tree).candidate
    return read_patch(readable.name, again) if again else None


def _first_parents(repository: Repository, target: str) -> Iterator[Commit]:
    commit = one_commit(repository, target)
    for _ in range(MAX_COMMITS):
        yield commit
        if not commit.parents or not repository.has(commit.parents[0]):
            return
        commit = one_commit(repository, commit.parents[0])


def _touches(repository: Repository, file: FilePatch, good: Commit, chain: Sequence[Commit]) -> list[Touch]:
    if file.change is Change.CREATE:
        return []
    tree = GitTree(repository=repository, commit=good.id)
    data = tree.read(file.source)
    placed = place_hunks(file.hunks, data)
    if isinstance(placed, Misfit):
        return []
    spans = [(one.line - 1, one.line - 1 + one.hunk.old_count) for one in placed[1]]
    found: list[Touch] = []
    before = tree.object_id(file.source)
    for commit in chain:
        tree = GitTree(repository=repository, commit=commit.id)
        now = tree.object_id(file.source)
        if now == before:
            continue
        if now is None:
            return [*found, Touch(commit=commit, path=file.source, hunk=0)]
        content = tree.read(file.source) if tree.mode(file.source) else b""
        changes = edits(data, content)
        for number, span in enumerate(spans, start=1):
            if any(_meets(edit, span) for edit in changes):
                found.append(Touch(commit=commit, path=file.source, hunk=number))
        spans = [_moved(span, changes) for span in spans]
        before, data = now, content
    return found


def _meets(edit: Edit, span: tuple[int, int]) -> bool:
    """Whether an edit changes lines of a span, or puts lines between them."""
    start, end = span
    return edit.start < end and edit.end > start if edit.end > edit.start else start < edit.start < end


def _moved(span: tuple[int, int], changes: Sequence[Edit]) -> tuple[int, int]:
    """Where a span is after edits; edits that meet it belong to it afterwards."""
    start, end = span
    before = grown = 0
    for edit in changes:
        change = len(edit.lines) - (edit.end - edit.start)
        if edit.end <= start and not _meets(edit, span):
            before += change
        elif _meets(edit, span):
            before -= max(0, start - edit.start)
            grown += change + max(0, start - edit.start)
    return start + before, max(start + before, end + before + grown)
