"""The verdict on one patch and one tree: what git would say, and what git does not see."""

from __future__ import annotations

from dataclasses import dataclass

from harness.patchstack.apply import (
    Applied,
    FileChange,
    Misfit,
    NotApplied,
    Rejection,
    apply_patch,
    place_hunks,
)
from harness.patchstack.diff import Change, CorruptPatchError, FilePatch, Patch, UnsafePatchError, parse_patch
from harness.patchstack.endings import describe, reencoded
from harness.patchstack.merge import Merged, merge
from harness.patchstack.render import render_patch
from harness.patchstack.symbols import enclosing, enclosing_quickly, heading_problem
from harness.patchstack.verdict import Failure, HunkPlace, PatchVerdict, Verdict
from harness.sources.tree import File, HasBlobs, Tree, blob_id


@dataclass(frozen=True, kw_only=True)
class Readable:
    """A patch as read: parsed, or why it cannot be."""

    name: str
    patch: Patch | None
    error: CorruptPatchError | UnsafePatchError | None = None


def read_patch(name: str, data: bytes) -> Readable:
    """Parse a patch; a bad one is a verdict, not an exception."""
    try:
        return Readable(name=name, patch=parse_patch(data))
    except (CorruptPatchError, UnsafePatchError) as error:
        return Readable(name=name, patch=None, error=error)


def classify(readable: Readable, tree: Tree, blobs: HasBlobs | None = None) -> PatchVerdict:
    """The verdict on a patch and a tree. `blobs` gives the files it was made from, by its index lines."""
    patch = readable.patch
    if patch is None:
        return _unreadable(readable)
    done = apply_patch(patch, tree)
    if isinstance(done, Applied):
        return _applied(readable.name, done, patch.stray, blobs)
    if any(rejection.unsafe for rejection in done.rejections):
        return _verdict(
            readable.name, Verdict.UNSAFE, done, remedy="do not use this patch; ask its author what it is for"
        )
    for attempt in (_already, _missing, _endings, _three_way, _drifted):
        found = attempt(readable.name, patch, tree, blobs, done)
        if found:
            return found
    return _conflict(readable.name, patch, tree, done)


def _unreadable(readable: Readable) -> PatchVerdict:
    error = readable.error
    unsafe = isinstance(error, UnsafePatchError)
    return PatchVerdict(
        patch=readable.name,
        verdict=Verdict.UNSAFE if unsafe else Verdict.CORRUPT,
        reasons=(f"line {error.line}: {error.why}" if error else "it could not be read",),
        remedies=(
            "do not use this patch; ask its author what it is for"
            if unsafe
            else "write the patch again with `git diff`; hand-edited hunks need their counts corrected",
        ),
    )


def _verdict(name: str, verdict: Verdict, done: NotApplied, *, remedy: str) -> PatchVerdict:
    return PatchVerdict(
        patch=name,
        verdict=verdict,
        reasons=tuple(f"{rejection.path}: {rejection.why}" for rejection in done.rejections),
        remedies=(remedy,),
        failures=_failures(done),
    )


def _failures(done: NotApplied) -> tuple[Failure, ...]:
    return tuple(
        Failure(path=rejection.path, hunk=rejection.hunk, why=rejection.why) for rejection in done.rejections
    )


def _applied(name: str, done: Applied, stray: tuple[int, ...], blobs: HasBlobs | None) -> PatchVerdict:
    problems = [problem for change in done.changes for problem in _misplacements(change, blobs)]
    places = tuple(place for change in done.changes for place in _places(change))
    offset = done.offset
    if problems:
        return PatchVerdict(
            patch=name,
            verdict=Verdict.MISPLACED,
            offset=offset,
            reasons=tuple(problems),
            remedies=("look at the place by hand, then write the patch again against this version",),
            places=places,
        )
    reasons = [f"lines have moved by {offset:+d} at most"] if offset else []
    reasons += [f"line {line} of the patch is below the end of its hunk and is left out" for line in stray]
    return PatchVerdict(
        patch=name,
        verdict=Verdict.OFFSET if offset else Verdict.CLEAN,
        offset=offset,
        reasons=tuple(reasons),
        places=places,
        files=done.files,
    )


def _places(change: FileChange) -> list[HunkPlace]:
    data = change.before.data if change.before else b""
    return [
        HunkPlace(
            path=change.patch.path,
            line=placement.line,
            offset=placement.offset,
            symbol=".".join(
                enclosing_quickly(change.patch.source, data, placement.line + placement.hunk.first_change)
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
    """Hunks that stand in another function or class than in the file the patch was made from."""
    path = change.patch.source
    origin = place_hunks(change.patch.hunks, base)
    if isinstance(origin, Misfit):
        return []
    problems = []
    for old, new in zip(origin[1], change.placements, strict=True):
        lines = old.line + old.hunk.first_change, new.line + new.hunk.first_change
        if enclosing_quickly(path, base, lines[0]) == enclosing_quickly(path, data, lines[1]):
            continue
        was, now = enclosing(base, lines[0]), enclosing(data, lines[1])
        if was != now and path.endswith((".py", ".pyi")):
            problems.append(
                f"{path}:{new.line}: the hunk was written for {'.'.join(was) or 'the module'!r} "
                f"and lands in {'.'.join(now) or 'the module'!r}"
            )
    return problems


def _already(
    name: str, patch: Patch, tree: Tree, _blobs: HasBlobs | None, _done: NotApplied
) -> PatchVerdict | None:
    undo = patch.reversed()
    if isinstance(apply_patch(undo, tree), Applied):
        return _upstream(name, "the tree has exactly what the patch would make of it")
    again = reencoded(undo, tree)
    if again and isinstance(apply_patch(again, tree), Applied):
        return _upstream(name, "the tree has what the patch would make of it, with other line endings")
    return None


def _upstream(name: str, reason: str) -> PatchVerdict:
    return PatchVerdict(
        patch=name,
        verdict=Verdict.ALREADY_UPSTREAM,
        reasons=(reason,),
        remedies=("end the patch's version range before this version",),
    )


def _missing(
    name: str, _patch: Patch, _tree: Tree, _blobs: HasBlobs | None, done: NotApplied
) -> PatchVerdict | None:
    if not any(rejection.missing for rejection in done.rejections):
        return None
    return _verdict(
        name,
        Verdict.MISSING_TARGET,
        done,
        remedy="find where upstream moved the code to, or end the patch's version range before this version",
    )


def _endings(
    name: str, patch: Patch, tree: Tree, _blobs: HasBlobs | None, done: NotApplied
) -> PatchVerdict | None:
    again = reencoded(patch, tree)
    applied = apply_patch(again, tree) if again else None
    if again is None or not isinstance(applied, Applied):
        return None
    reasons = [
        f"{rejection.path} has {describe(tree.read(rejection.path))} line endings, the patch has others"
        for rejection in done.rejections
    ]
    return PatchVerdict(
        patch=name,
        verdict=Verdict.LINE_ENDINGS,
        offset=applied.offset,
        reasons=tuple(reasons),
        remedies=("use the re-encoded patch: it gives added lines the file's own endings",),
        places=tuple(place for change in applied.changes for place in _places(change)),
        failures=_failures(done),
        files=applied.files,
        candidate=render_patch(again),
    )


@dataclass(frozen=True, kw_only=True)
class ThreeWay:
    """One file merged: its base, this tree's and the patch's content, and the result."""

    file: FilePatch
    base: bytes
    ours: File
    result: Merged


def three_way(
    patch: Patch, tree: Tree, blobs: HasBlobs | None, theirs_name: str = "patch"
) -> list[ThreeWay] | None:
    """Merge every file of a patch with this tree's, over the file the patch was made from.

    None when such a file is not at hand, and for patches that create, remove or rename.
    """
    merged = []
    for file in patch.files:
        if (
            file.change is not Change.MODIFY
            or not file.index_old
            or not blobs
            or tree.mode(file.source) is None
        ):
            return None
        base = blobs.blob(file.index_old)
        theirs = place_hunks(file.hunks, base) if base is not None else None
        if base is None or theirs is None or isinstance(theirs, Misfit):
            return None
        ours = File(data=tree.read(file.source), mode=tree.mode(file.source) or "")
        result = merge(base, ours.data, theirs[0], ours_name=tree.label, theirs_name=theirs_name)
        merged.append(ThreeWay(file=file, base=base, ours=ours, result=result))
    return merged


def _three_way(
    name: str, patch: Patch, tree: Tree, blobs: HasBlobs | None, done: NotApplied
) -> PatchVerdict | None:
    merged = three_way(patch, tree, blobs)
    if not merged or any(one.result.conflicts for one in merged):
        return None
    if all(one.result.data == one.ours.data for one in merged):
        return _upstream(name, "every change is there already, though the lines around it have changed since")
    candidate = difference({one.file.path: (one.ours.data, one.result.data) for one in merged})
    return PatchVerdict(
        patch=name,
        verdict=Verdict.MERGED,
        reasons=tuple(f"{rejection.path}: {rejection.why}" for rejection in done.rejections),
        remedies=("review the merged patch and take it as the body for this version",),
        failures=_failures(done),
        files={one.file.path: File(data=one.result.data, mode=one.ours.mode) for one in merged},
        candidate=candidate,
    )


def difference(files: dict[str, tuple[bytes, bytes]]) -> bytes:
    """A git patch from the old to the new content of each path; unchanged files are left out."""
    import pygit2

    parts = []
    for path, (old, new) in sorted(files.items()):
        if old != new:
            made = pygit2.Patch.create_from(
                old, new, old_as_path=path, new_as_path=path, flag=pygit2.enums.DiffOption.SHOW_BINARY
            )
            parts.append(bytes(made.data))
    return b"".join(parts)


def _drifted(
    name: str, patch: Patch, tree: Tree, _blobs: HasBlobs | None, _done: NotApplied
) -> PatchVerdict | None:
    """Already upstream though the context has changed and the original file is not at hand."""
    if any(file.change is not Change.MODIFY or not file.hunks for file in patch.files):
        return None
    for file in patch.files:
        data = tree.read(file.source)
        if not all(
            _group_is_there(file, data, group) for hunk in file.hunks for group in _groups(hunk.lines)
        ):
            return None
    return _upstream(
        name, "every line it adds is there and every line it removes is gone; the context has changed since"
    )


def _groups(lines: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    """Each run of changed lines as (removed, added)."""
    groups: list[tuple[bytes, bytes]] = []
    removed = added = b""
    for op, text in [*lines, (b" ", b"")]:
        if op == b"-":
            removed += text
        elif op == b"+":
            added += text
        elif removed or added:
            groups.append((removed, added))
            removed = added = b""
    return groups


#: Fewer letters than this in added lines say nothing: `else:` or `return x` is in many places.
_TELLING_BYTES = 24


def _group_is_there(_file: FilePatch, data: bytes, group: tuple[bytes, bytes]) -> bool:
    removed, added = group
    telling = len(b"".join(added.split()))
    return telling >= _TELLING_BYTES and _once(added, data) and not (removed and _has(removed, data))


def _has(text: bytes, data: bytes) -> bool:
    return data.startswith(text) or b"\n" + text in data


def _once(text: bytes, data: bytes) -> bool:
    return (b"\n" + data).count(b"\n" + text) == 1


def _conflict(name: str, patch: Patch, tree: Tree, done: NotApplied) -> PatchVerdict:
    notes = [f"{rejection.path}: {rejection.why}" for rejection in done.rejections]
    notes += _partly_upstream(patch, tree, done.rejections)
    return PatchVerdict(
        patch=name,
        verdict=Verdict.CONFLICT,
        reasons=tuple(notes),
        remedies=(f"make a body for this version: npu-matrix patches rebase {name} --to {tree.label}",),
        failures=_failures(done),
    )


def _partly_upstream(patch: Patch, tree: Tree, rejections: tuple[Rejection, ...]) -> list[str]:
    rejected = {rejection.path for rejection in rejections}
    found = []
    for file in patch.files:
        if file.source not in rejected or file.change is not Change.MODIFY or tree.mode(file.source) is None:
            continue
        data = tree.read(file.source)
        there = [
            number
            for number, hunk in enumerate(file.hunks, start=1)
            if not isinstance(place_hunks((hunk.reversed(),), data), Misfit)
            and isinstance(place_hunks((hunk,), data), Misfit)
        ]
        if there:
            found.append(
                f"{file.source}: hunk {', '.join(map(str, there))} of {len(file.hunks)} is already upstream"
            )
    return found
