"""Find the upstream commit that broke a patch, and all commits that changed the lines of its hunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.patchstack.apply.classify import LoadedPatch, classify, read_patch
from harness.patchstack.apply.line_merge import LineEdit, line_edits
from harness.patchstack.apply.patch_apply import HunkMismatch, place_hunks
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.format.diff import ChangeKind, FilePatch
from harness.sources.git.commit_history import Commit, one_commit
from harness.sources.git.git_repository import GitTree, Repository

#: The maximum number of commits to search; even a busy repository needs years for this many.
MAX_COMMITS = 20_000


@dataclass(frozen=True, kw_only=True)
class Touch:
    """A commit that changed lines or context of a hunk. hunk: from 1, or 0 if the commit removed the file."""

    commit: Commit
    path: str
    hunk: int


@dataclass(frozen=True, kw_only=True)
class Breakage:
    """The commits that broke a patch.

    last_good: the newest commit before the target to which the patch applies, if necessary with converted
    line endings; None if there is none.
    broken_by: the commit after `last_good`, which is the first to which the patch does not apply.
    touched_by: commits from `broken_by` to the target that changed lines of the patch, oldest first.
    applicable: the patch in the form in which it applies to `last_good`.
    """

    last_good: Commit | None
    broken_by: Commit | None
    touched_by: tuple[Touch, ...]
    applicable: LoadedPatch | None = None


def find_breakage(repository: Repository, loaded: LoadedPatch, target: str) -> Breakage:
    """Follow first parents from `target` back to the newest commit where the patch applies."""
    patch = loaded.patch
    if patch is None:
        return Breakage(last_good=None, broken_by=None, touched_by=())
    chain: list[Commit] = []
    known: dict[tuple[str | None, ...], LoadedPatch | None] = {}
    for commit in _first_parents(repository, target):
        tree = GitTree(repository=repository, commit=commit.id)
        key = tuple(tree.object_id(path) for path in patch.paths)
        if key not in known:
            known[key] = _applicable(loaded, tree)
        applicable = known[key]
        if applicable is not None and applicable.patch is not None:
            chain.reverse()
            files = applicable.patch.files
            touches = [touch for file in files for touch in _touches(repository, file, commit, chain)]
            order = {later.id: number for number, later in enumerate(chain)}
            touches.sort(key=lambda touch: (order[touch.commit.id], touch.path, touch.hunk))
            return Breakage(
                last_good=commit,
                broken_by=chain[0] if chain else None,
                touched_by=tuple(touches),
                applicable=applicable,
            )
        chain.append(commit)
    return Breakage(last_good=None, broken_by=None, touched_by=())


def _applicable(loaded: LoadedPatch, tree: GitTree) -> LoadedPatch | None:
    """The patch, if necessary with converted line endings; None if it does not apply to the tree."""
    verdict = classify(loaded, tree, tree, explain=False).verdict
    if verdict is not PatchVerdict.LINE_ENDINGS:
        return loaded if verdict.applies else None
    converted = classify(loaded, tree, tree).candidate_data
    return read_patch(loaded.name, converted) if converted else None


def _first_parents(repository: Repository, target: str) -> Iterator[Commit]:
    commit = one_commit(repository, target)
    for _ in range(MAX_COMMITS):
        yield commit
        if not commit.parents or not repository.has(commit.parents[0]):
            return
        commit = one_commit(repository, commit.parents[0])


def _touches(repository: Repository, file: FilePatch, good: Commit, chain: Sequence[Commit]) -> list[Touch]:
    if file.change is ChangeKind.CREATE:
        return []
    tree = GitTree(repository=repository, commit=good.id)
    data = tree.read(file.source)
    placed = place_hunks(file.hunks, data)
    if isinstance(placed, HunkMismatch):
        return []
    spans = [(place.line - 1, place.line - 1 + place.hunk.old_count) for place in placed[1]]
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
        changes = line_edits(data, content)
        for number, span in enumerate(spans, start=1):
            if any(_overlaps(edit, span) for edit in changes):
                found.append(Touch(commit=commit, path=file.source, hunk=number))
        spans = [_moved(span, changes) for span in spans]
        before, data = now, content
    return found


def _overlaps(edit: LineEdit, span: tuple[int, int]) -> bool:
    """Whether an edit changes lines of a span, or inserts lines in it."""
    start, end = span
    return edit.start < end and edit.end > start if edit.end > edit.start else start < edit.start < end


def _moved(span: tuple[int, int], changes: Sequence[LineEdit]) -> tuple[int, int]:
    """The lines of the span after the edits, including the lines of edits that overlap it."""
    start, end = span
    before = grown = 0
    for edit in changes:
        change = len(edit.lines) - (edit.end - edit.start)
        if edit.end <= start and not _overlaps(edit, span):
            before += change
        elif _overlaps(edit, span):
            before -= max(0, start - edit.start)
            grown += change + max(0, start - edit.start)
    return start + before, max(start + before, end + before + grown)
