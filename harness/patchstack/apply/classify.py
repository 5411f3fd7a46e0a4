"""The verdict on one patch and one tree, including what `git apply` does not detect (misplaced hunks)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from harness.patchstack.apply.line_endings import (
    convert_line_endings,
    describe_line_endings,
    may_be_line_endings,
)
from harness.patchstack.apply.patch_apply import (
    Applied,
    FileChange,
    HunkMismatch,
    NotApplied,
    apply_patch,
    place_hunks,
)
from harness.patchstack.apply.patch_verdict import ClassifiedPatch, HunkFailure, HunkPlace, PatchVerdict
from harness.patchstack.apply.three_way import three_way_inputs
from harness.patchstack.format.diff import (
    ChangeKind,
    FilePatch,
    Hunk,
    Patch,
    PatchFormatError,
    UnsafePatchError,
)
from harness.patchstack.format.diff_parser import parse_patch
from harness.patchstack.format.diff_writer import diff_files, render_patch
from harness.patchstack.python_source.enclosing_symbols import (
    enclosing,
    enclosing_quickly,
    heading_problem,
    is_definition,
    same_place,
)
from harness.sources.tree import HasBlobs, Tree, TreeFile, blob_id

#: Added lines with fewer bytes than this, such as `else:`, occur in many places and show nothing.
_DISTINCTIVE_BYTES = 24


@dataclass(frozen=True, kw_only=True)
class LoadedPatch:
    """A patch that was read. If it cannot be parsed, `patch` is None and `error` is the reason."""

    name: str
    patch: Patch | None
    error: PatchFormatError | None = None


def read_patch(name: str, data: bytes) -> LoadedPatch:
    """Parse a patch. If that fails, no exception is raised; `classify` gives the verdict on the patch."""
    try:
        return LoadedPatch(name=name, patch=parse_patch(data))
    except PatchFormatError as error:
        return LoadedPatch(name=name, patch=None, error=error)


@dataclass(frozen=True, kw_only=True)
class _FailedPatch:
    """A patch that does not apply to a tree. explain: whether reasons are given."""

    name: str
    patch: Patch
    tree: Tree
    blobs: HasBlobs | None
    rejected: NotApplied
    explain: bool

    @property
    def reasons(self) -> tuple[str, ...]:
        if not self.explain:
            return ()
        return tuple(f"{rejection.path}: {rejection.why}" for rejection in self.rejected.rejections)

    @property
    def rebase(self) -> str:
        """The command that rebases the patch onto this tree."""
        return f"npu-matrix patches rebase {self.name} --to {self.tree.label} --out rebased"

    @property
    def failures(self) -> tuple[HunkFailure, ...]:
        if not self.explain:
            return ()
        return tuple(
            HunkFailure(path=rejection.path, hunk=rejection.hunk, why=rejection.why)
            for rejection in self.rejected.rejections
        )


def classify(
    loaded: LoadedPatch, tree: Tree, blobs: HasBlobs | None = None, *, explain: bool = True
) -> ClassifiedPatch:
    """The verdict on a patch and a tree. `blobs` provides the files that the patch's index lines name.

    Without `explain` it is faster and has no reasons, hunks, files or candidate.
    """
    patch = loaded.patch
    if patch is None:
        return _unreadable(loaded)
    done = apply_patch(patch, tree, every_reason=explain)
    if isinstance(done, Applied):
        return _applied(loaded.name, done, patch.stray, blobs, explain=explain)
    case = _FailedPatch(name=loaded.name, patch=patch, tree=tree, blobs=blobs, rejected=done, explain=explain)
    if any(rejection.unsupported for rejection in done.rejections) and not any(
        rejection.unsafe for rejection in done.rejections
    ):
        return (_undone_exactly(case) if not patch.unsupported else None) or _unsupported(case)
    if any(rejection.unsafe for rejection in done.rejections):
        return _failed(case, PatchVerdict.UNSAFE, "do not use this patch; ask its author why it writes there")
    for attempt in (
        _already_upstream,
        _missing_target,
        _other_line_endings,
        _three_way,
        _upstream_in_other_context,
    ):
        found = attempt(case)
        if found:
            return found
    return _conflict(case)


def _unreadable(loaded: LoadedPatch) -> ClassifiedPatch:
    error = loaded.error
    unsafe = isinstance(error, UnsafePatchError)
    return ClassifiedPatch(
        patch=loaded.name,
        verdict=PatchVerdict.UNSAFE if unsafe else PatchVerdict.CORRUPT,
        reasons=(f"line {error.line}: {error.why}" if error else "the patch could not be read",),
        remedies=(
            "do not use this patch; ask its author why it writes there"
            if unsafe
            else "write the patch again with `git diff`; in a hand-edited hunk, correct the line counts",
        ),
    )


def _undone_exactly(case: _FailedPatch) -> ClassifiedPatch | None:
    """`already-upstream` if undoing the patch applies at its line numbers, also without context lines."""
    undone = apply_patch(case.patch.undo, case.tree, every_reason=False)
    if isinstance(undone, Applied) and not undone.offset:
        return _upstream_verdict(case, "the tree already contains exactly this change")
    return None


def _unsupported(case: _FailedPatch) -> ClassifiedPatch:
    found = [rejection for rejection in case.rejected.rejections if rejection.unsupported]
    return ClassifiedPatch(
        patch=case.name,
        verdict=PatchVerdict.UNSUPPORTED,
        reasons=tuple(f"{rejection.path}: {rejection.why}" for rejection in found),
        remedies=(
            "run `git apply --check`, or write the patch again as text with context lines (`git diff -U3`)",
        ),
        failures=tuple(
            HunkFailure(path=rejection.path, hunk=rejection.hunk, why=rejection.why) for rejection in found
        ),
    )


def _failed(case: _FailedPatch, verdict: PatchVerdict, remedy: str) -> ClassifiedPatch:
    return ClassifiedPatch(
        patch=case.name, verdict=verdict, reasons=case.reasons, remedies=(remedy,), failures=case.failures
    )


def _applied(
    name: str, done: Applied, stray: tuple[int, ...], blobs: HasBlobs | None, *, explain: bool
) -> ClassifiedPatch:
    problems = [problem for change in done.changes for problem in _misplacements(change, blobs)]
    places = tuple(place for change in done.changes for place in _places(change)) if explain else ()
    offset = done.offset
    if problems:
        return ClassifiedPatch(
            patch=name,
            verdict=PatchVerdict.MISPLACED,
            offset=offset,
            reasons=tuple(problems),
            remedies=("check by hand where the change belongs, then write the patch again for this version",),
            hunks=places,
        )
    reasons = [f"its hunks apply up to {abs(offset)} lines away from their line numbers"] if offset else []
    reasons += [f"line {line} of the patch comes after the end of its hunk and is ignored" for line in stray]
    return ClassifiedPatch(
        patch=name,
        verdict=PatchVerdict.OFFSET if offset else PatchVerdict.CLEAN,
        offset=offset,
        reasons=tuple(reasons),
        hunks=places,
        files=done.files if explain else {},
    )


def _places(change: FileChange) -> list[HunkPlace]:
    data = change.before.data if change.before else b""
    return [
        HunkPlace(
            path=change.patch.path,
            line=placement.line,
            offset=placement.offset,
            symbol=".".join(
                enclosing_quickly(change.patch.source, data, placement.line + placement.hunk.leading)
            ),
        )
        for placement in change.placements
    ]


def _misplacements(change: FileChange, blobs: HasBlobs | None) -> list[str]:
    file, before = change.patch, change.before
    if before is None or not change.placements:
        return []
    base = blobs.blob(file.index_old) if blobs and file.index_old else None
    if base is None and file.index_old and blob_id(before.data).startswith(file.index_old):
        return []
    if base is None:
        problems = [
            heading_problem(file.source, placement.hunk.section, before.data, placement.line)
            for placement in change.placements
        ]
        return [
            f"{file.source}:{placement.line}: {why}"
            for placement, why in zip(change.placements, problems, strict=True)
            if why
        ]
    return [] if base == before.data else _moved(change, base, before.data)


def _moved(change: FileChange, base: bytes, data: bytes) -> list[str]:
    """Hunks that were placed in another function or class than the one they were written for."""
    path = change.patch.source
    problems = []
    for (line, was), new in zip(_original_positions(change.patch, base), change.placements, strict=False):
        at = new.line + new.hunk.leading
        now = enclosing_quickly(path, data, at)
        if was == now or same_place(was, now, base, data):
            continue
        before, after = enclosing(base, line), enclosing(data, at)
        if before != after and not same_place(before, after, base, data):
            problems.append(
                f"{path}:{new.line}: the hunk was written for {'.'.join(before) or 'the module'!r} "
                f"and is applied in {'.'.join(after) or 'the module'!r}"
            )
    return problems


@lru_cache(maxsize=256)
def _original_positions(file: FilePatch, base: bytes) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """For each hunk, the first changed line and its enclosing definitions in the file the patch was made for.

    Empty when the patch does not apply to that file.
    """
    placed = place_hunks(file.hunks, base)
    if isinstance(placed, HunkMismatch):
        return ()
    lines = [placement.line + placement.hunk.leading for placement in placed[1]]
    return tuple((line, enclosing_quickly(file.source, base, line)) for line in lines)


def _already_upstream(case: _FailedPatch) -> ClassifiedPatch | None:
    undone = apply_patch(case.patch.undo, case.tree, every_reason=False)
    if isinstance(undone, Applied):
        reason = "the tree already contains exactly this change"
    elif may_be_line_endings(case.patch, undone):
        again = convert_line_endings(case.patch.undo, case.tree)
        undone = apply_patch(again, case.tree, every_reason=False) if again else undone
        reason = "the tree already contains this change, with other line endings"
    if isinstance(undone, NotApplied):
        return None
    # Another function may have the same lines.
    if any(_misplacements(change, case.blobs) for change in undone.changes):
        return None
    return _upstream_verdict(case, reason)


def _upstream_verdict(case: _FailedPatch, reason: str) -> ClassifiedPatch:
    return ClassifiedPatch(
        patch=case.name,
        verdict=PatchVerdict.ALREADY_UPSTREAM,
        reasons=(reason,),
        remedies=("end the patch's version range before this version",),
    )


def _missing_target(case: _FailedPatch) -> ClassifiedPatch | None:
    if not any(rejection.missing for rejection in case.rejected.rejections):
        return None
    return _failed(
        case,
        PatchVerdict.MISSING_TARGET,
        "find where upstream moved the code, or end the patch's version range before this version",
    )


def _other_line_endings(case: _FailedPatch) -> ClassifiedPatch | None:
    again = (
        convert_line_endings(case.patch, case.tree)
        if may_be_line_endings(case.patch, case.rejected)
        else None
    )
    applied = apply_patch(again, case.tree) if again else None
    if again is None or not isinstance(applied, Applied):
        return None
    reasons = [
        f"{rejection.path} has {describe_line_endings(case.tree.read(rejection.path))} line endings, "
        "the patch has others"
        for rejection in case.rejected.rejections
    ]
    return ClassifiedPatch(
        patch=case.name,
        verdict=PatchVerdict.LINE_ENDINGS,
        offset=applied.offset,
        reasons=tuple(reasons),
        remedies=(f"use the patch converted to the line endings of the file: {case.rebase}",),
        hunks=tuple(place for change in applied.changes for place in _places(change)) if case.explain else (),
        failures=case.failures,
        files=applied.files if case.explain else {},
        candidate=case.explain,
        candidate_data=render_patch(again) if case.explain else None,
    )


def _three_way(case: _FailedPatch) -> ClassifiedPatch | None:
    inputs = three_way_inputs(case.patch, case.tree, case.blobs)
    if not inputs or any(item.must_conflict for item in inputs):
        return None
    merged = [(item, item.merge()) for item in inputs]
    if any(result.conflicts for _item, result in merged):
        return None
    if all(result.data == item.ours.data for item, result in merged):
        return _upstream_verdict(case, "upstream already has every change; only the lines around them differ")
    return ClassifiedPatch(
        patch=case.name,
        verdict=PatchVerdict.MERGED,
        reasons=case.reasons,
        remedies=(
            f"review the merged patch and use it as the patch variant for this version: {case.rebase}",
        ),
        failures=case.failures,
        files={item.file.path: TreeFile(data=result.data, mode=item.ours.mode) for item, result in merged}
        if case.explain
        else {},
        candidate=case.explain,
        candidate_data=diff_files({item.file.path: (item.ours.data, result.data) for item, result in merged})
        if case.explain
        else None,
    )


def _upstream_in_other_context(case: _FailedPatch) -> ClassifiedPatch | None:
    """The verdict `already-upstream` if upstream has every change, in another context."""
    if any(file.change is not ChangeKind.MODIFY or not file.hunks for file in case.patch.files):
        return None
    for file in case.patch.files:
        data = case.tree.read(file.source)
        groups = (group for hunk in file.hunks for group in _change_groups(hunk))
        if not all(_contains_change(file.source, data, group) for group in groups):
            return None
    return _upstream_verdict(
        case,
        "the file has every line that the patch adds and none that it removes; only the context differs",
    )


@dataclass(frozen=True, kw_only=True)
class _ChangeGroup:
    """A run of changed lines. heading: the nearest definition above it that its hunk shows."""

    heading: bytes
    removed: bytes
    added: bytes


def _change_groups(hunk: Hunk) -> list[_ChangeGroup]:
    groups: list[_ChangeGroup] = []
    heading, removed, added = hunk.section, b"", b""
    for op, text in [*hunk.lines, (b" ", b"")]:
        if op == b"-":
            removed += text
        elif op == b"+":
            added += text
        else:
            if removed or added:
                groups.append(_ChangeGroup(heading=heading, removed=removed, added=added))
                removed = added = b""
            heading = text if is_definition(text) else heading
    return groups


def _contains_change(path: str, data: bytes, group: _ChangeGroup) -> bool:
    """Whether the file has the added lines, once and in the same definition, and not the removed ones."""
    distinctive = len(b"".join(group.added.split())) >= _DISTINCTIVE_BYTES
    whole = b"\n" + data
    start = whole.find(b"\n" + group.added)
    if not distinctive or start < 0 or whole.count(b"\n" + group.added) > 1:
        return False
    if group.removed and b"\n" + group.removed in whole:
        return False
    if path.endswith(".py") and group.added[:1].isspace() and not is_definition(group.heading.lstrip()):
        return False  # It belongs to a definition that is not known.
    return not heading_problem(path, group.heading, data, data.count(b"\n", 0, start) + 1)


def _conflict(case: _FailedPatch) -> ClassifiedPatch:
    return ClassifiedPatch(
        patch=case.name,
        verdict=PatchVerdict.CONFLICT,
        reasons=(*case.reasons, *(_partly_upstream(case) if case.explain else ())),
        remedies=(f"make a patch variant for this version: {case.rebase}",),
        failures=case.failures,
    )


def _partly_upstream(case: _FailedPatch) -> list[str]:
    rejected = {rejection.path for rejection in case.rejected.rejections}
    found = []
    for file in case.patch.files:
        if file.source not in rejected or file.change is not ChangeKind.MODIFY:
            continue
        if case.tree.mode(file.source) is None:
            continue
        data = case.tree.read(file.source)
        there = [
            number
            for number, hunk in enumerate(file.hunks, start=1)
            if _is_undone_here(file.source, data, hunk)
            and isinstance(place_hunks((hunk,), data), HunkMismatch)
        ]
        if there:
            numbers = ", ".join(map(str, there))
            found.append(f"{file.source}: hunk {numbers} of {len(file.hunks)} is already upstream")
    return found


def _is_undone_here(path: str, data: bytes, hunk: Hunk) -> bool:
    undone = place_hunks((hunk.reversed(),), data)
    return not isinstance(undone, HunkMismatch) and not heading_problem(
        path, hunk.section, data, undone[1][0].line
    )
