"""Applying a parsed patch to a tree in memory: all or nothing, byte for byte, without fuzz.

A hunk is placed where git would place it: all its old lines must match exactly, and of several matches the
match nearest to the line in the hunk's header is used. A hunk never matches text that an earlier hunk wrote.

Two rules are stricter than git's. Old text that ends without a newline matches only at the end of the file;
git also matches it elsewhere if the last line is context, and then joins two lines. A hunk without old text
applies only to an empty file; git appends it to any file, unless its header says line 0 or 1. A patch that is
rejected by these rules is `unsupported`, like binary changes and submodules: it may apply with git.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from harness.patchstack.format.diff import ChangeKind, FilePatch, Hunk, Patch
from harness.sources.tree import EXECUTABLE, REGULAR, SYMLINK, OverlayTree, Tree, TreeFile, link_above


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a hunk was placed: its first line (from 1) in the unpatched file, and its offset in lines.

    The offset is git's: the distance from the header's new line, in the file as earlier hunks left it.
    """

    hunk: Hunk
    line: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class HunkMismatch:
    """The first hunk that does not match a file. number: from 1. data: the file after the earlier hunks."""

    number: int
    hunk: Hunk
    data: bytes

    @property
    def ambiguous(self) -> bool:
        """Whether git places such a hunk by rules that are not followed here.

        Without context lines, git uses the end of the file, or with --unidiff-zero the line numbers. Old text
        without a newline at its end also matches in the middle of a file, where git joins two lines.
        """
        pre = self.hunk.pre
        if any(op == b" " for op, _text in self.hunk.lines):
            return not pre.endswith(b"\n") and pre + b"\n" in self.data
        # Without context and at line 1, it can be the change of a whole file, as after `git diff -U3`.
        return self.hunk.old_start > 1 or self.data.startswith(pre)

    @property
    def why(self) -> str:
        """Which expected line the file does not contain."""
        name = f"hunk {self.number}"
        if not self.hunk.pre:
            return f"{name} has no context lines, so its position is ambiguous"
        lines = set(self.data.splitlines(keepends=True))
        for op, text in self.hunk.lines:
            if op != b"+" and text not in lines:
                shown = text.decode("utf-8", "replace").strip()[:120]
                return f"{name} (line {self.hunk.old_start}): the file does not have its line {shown!r}"
        return f"{name} (line {self.hunk.old_start}): the file has all its lines, but not as one block"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why a file patch does not apply: `file_reason`, or a hunk that does not match."""

    path: str
    file_reason: str = ""
    mismatch: HunkMismatch | None = None
    missing: bool = False
    unsafe: bool = False
    unsupported: bool = False

    @property
    def hunk(self) -> int:
        """The number of the hunk (from 1); 0 if the whole file is rejected."""
        return self.mismatch.number if self.mismatch else 0

    @property
    def why(self) -> str:
        """The reason. It is computed on request, because most rejections are only counted."""
        return self.mismatch.why if self.mismatch else self.file_reason


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """An applied file patch: the file before and after (None: no file), and the positions of its hunks."""

    patch: FilePatch
    before: TreeFile | None
    after: TreeFile | None
    placements: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """An applied patch: every changed path with its new file, or None if it was removed."""

    changes: tuple[FileChange, ...]
    files: Mapping[str, TreeFile | None]

    @property
    def offset(self) -> int:
        """The largest offset of a hunk, with its sign."""
        offsets = [placement.offset for change in self.changes for placement in change.placements]
        return max(offsets, key=abs, default=0)


@dataclass(frozen=True, kw_only=True)
class NotApplied:
    """A patch that does not apply, with the reason for every file."""

    rejections: tuple[Rejection, ...]


def apply_patch(patch: Patch, tree: Tree, *, every_reason: bool = True) -> Applied | NotApplied:
    """Apply a whole patch to a tree, which itself is not changed.

    As in git, a file patch sees what earlier ones wrote, except that renames and copies read the unpatched
    tree, and all files are removed before any is written.

    Without `every_reason`, after the first hunk that does not match, the remaining files are only checked for
    more severe problems: unsafe or missing files.
    """
    state = _Patched(tree=tree, pending=frozenset(path for file in patch.files if (path := _removed(file))))
    changes: list[FileChange] = []
    rejections: list[Rejection] = []
    for file in patch.files:
        if rejections and not every_reason:
            refusal = _refusal(file, state)
            rejections += [refusal] if refusal else []
            continue
        applied = _apply_file(file, state)
        if isinstance(applied, Rejection):
            rejections.append(applied)
            continue
        changes.append(applied)
        state.add(file, applied.after)
    if rejections:
        return NotApplied(rejections=tuple(rejections))
    return Applied(changes=tuple(changes), files=state.files)


@dataclass(kw_only=True)
class _Patched:
    """A tree and what the file patches so far made of it, by the rules of git's apply.c (2.39).

    pending: all paths that a file patch removes. latest: path -> its file after the last file patch that
    names it, None if that removed it. written: path -> the last file that was written there. swapped: the
    paths to which a file was renamed.
    """

    tree: Tree
    pending: frozenset[str]
    latest: dict[str, TreeFile | None] = field(default_factory=dict)
    written: dict[str, TreeFile] = field(default_factory=dict)
    swapped: set[str] = field(default_factory=set)

    @property
    def files(self) -> dict[str, TreeFile | None]:
        """Every changed path: all files are removed before any is written."""
        return self.latest | self.written

    @property
    def now(self) -> Tree:
        """The tree after the file patches so far."""
        return OverlayTree(base=self.tree, changes=self.latest) if self.latest else self.tree

    def source(self, file: FilePatch) -> Tree:
        """Where a file patch reads its old file: renames and copies do not depend on the order."""
        return self.tree if file.change in {ChangeKind.RENAME, ChangeKind.COPY} else self.now

    def is_free(self, path: str) -> bool:
        """Whether git creates this file: it is not in the unpatched tree, or the patch removes it."""
        removed = self.latest[path] is None if path in self.latest else path in self.pending
        return removed or self.tree.mode(path) is None

    def stays(self, file: FilePatch) -> bool:
        """Whether git leaves a file that the patch removes, because an earlier file patch wrote it.

        Two files that a patch renames to each other were not written before.
        """
        path = _removed(file)
        return path in self.written and not (file.change is ChangeKind.RENAME and path in self.swapped)

    def add(self, file: FilePatch, after: TreeFile | None) -> None:
        """Record an applied file patch."""
        if file.new_path and after is not None:
            self.latest[file.new_path] = self.written[file.new_path] = after
            self.swapped |= {file.new_path} if file.change is ChangeKind.RENAME else set()
        removed = _removed(file)
        if removed:
            self.latest[removed] = None


def _removed(file: FilePatch) -> str | None:
    """The path that a file patch removes, if any."""
    return file.old_path if file.change in {ChangeKind.DELETE, ChangeKind.RENAME} else None


def _obstruction(tree: Tree, path: str) -> str:
    """Why a new file cannot be written unless the patch first removes what is there, or ""."""
    parents = [parent.as_posix() for parent in PurePosixPath(path).parents]
    file = next((parent for parent in parents if tree.mode(parent)), "")
    if file:
        return f"{file} is a file"
    return "it is a folder" if tree.is_folder(path) else ""


def _apply_file(file: FilePatch, state: _Patched) -> FileChange | Rejection:
    refusal = _refusal(file, state)
    if refusal:
        return refusal
    before, tree = None, state.source(file)
    if file.change is not ChangeKind.CREATE:
        mode = tree.mode(file.source) or REGULAR
        before = TreeFile(data=tree.read(file.source), mode=mode)
    placed = place_hunks(file.hunks, before.data if before else b"")
    if isinstance(placed, HunkMismatch):
        return Rejection(path=file.source, mismatch=placed, unsupported=placed.ambiguous)
    data, placements = placed
    if file.change is ChangeKind.DELETE:
        if data:
            return Rejection(
                path=file.path,
                file_reason="deleting it would discard content that the patch does not contain",
            )
        return FileChange(patch=file, before=before, after=None, placements=placements)
    return FileChange(
        patch=file,
        before=before,
        after=TreeFile(data=data, mode=_new_mode(file, before)),
        placements=placements,
    )


def _refusal(file: FilePatch, state: _Patched) -> Rejection | None:
    tree = state.source(file)
    for path in (file.old_path, file.new_path):
        link = link_above(state.now, path) if path else None
        if link:
            return Rejection(
                path=path or "", file_reason=f"it is behind the symbolic link {link}", unsafe=True
            )
    if file.unsupported:
        return Rejection(path=file.path, file_reason=file.unsupported, unsupported=True)
    if file.change is not ChangeKind.CREATE:
        mode = tree.mode(file.source)
        if mode is None:
            # Without a stated mode, git takes a folder for a submodule and ignores the change.
            folder = file.old_mode is None and tree.is_folder(file.source)
            why = "it is a folder" if folder else "this file does not exist"
            return Rejection(path=file.source, file_reason=why, missing=not folder, unsupported=folder)
        if state.stays(file):
            why = "the patch removes it after it changed it, where git keeps it; use one patch per commit"
            return Rejection(path=file.source, file_reason=why, unsupported=True)
        stated = file.old_mode is not None or file.hunks
        if stated and (mode == SYMLINK) != file.is_symlink:
            kinds = ("a symbolic link", "a plain file")
            found, expected = kinds if mode == SYMLINK else kinds[::-1]
            return Rejection(
                path=file.source, file_reason=f"it is {found}, the patch expects {expected}", unsafe=True
            )
    new = file.new_path
    creates = file.change in {ChangeKind.CREATE, ChangeKind.RENAME, ChangeKind.COPY}
    if new and creates and new != file.old_path:
        if not state.is_free(new):
            return Rejection(path=new, file_reason="it exists already")
        obstruction = _obstruction(state.tree, new)
        if obstruction:
            # git removes and writes files in an order that is not followed here.
            return Rejection(path=new, file_reason=obstruction, unsupported=True)
    if file.new_mode and file.new_mode[:3] == "120" and not file.hunks and file.change is ChangeKind.CREATE:
        return Rejection(
            path=file.path, file_reason="it would be a symbolic link without a target", unsafe=True
        )
    if file.new_mode and file.new_mode[:3] == "120" and file.change is ChangeKind.MODIFY:
        return Rejection(path=file.path, file_reason="it would turn a file into a symbolic link", unsafe=True)
    return None


def _new_mode(file: FilePatch, before: TreeFile | None) -> str:
    mode = file.new_mode
    if mode is None:
        return before.mode if before else REGULAR
    if mode[:3] == "120":
        return SYMLINK
    return EXECUTABLE if int(mode, 8) & 0o100 else REGULAR


def place_hunks(hunks: tuple[Hunk, ...], data: bytes) -> tuple[bytes, tuple[Placement, ...]] | HunkMismatch:
    """Apply hunks in order to a file's bytes."""
    written: list[tuple[int, int]] = []
    placements: list[Placement] = []
    growth: list[tuple[int, int]] = []
    for number, hunk in enumerate(hunks, start=1):
        found = _find(hunk, data, written)
        if found is None:
            return HunkMismatch(number=number, hunk=hunk, data=data)
        start, end, line = found
        before = sum(grown for first, grown in growth if first <= line)
        placements.append(
            Placement(hunk=hunk, line=line - before + 1, offset=line - max(0, hunk.new_start - 1))
        )
        growth.append((line, hunk.new_count - hunk.old_count))
        data = data[:start] + hunk.post + data[end:]
        grown = len(hunk.post) - (end - start)
        written = [(a + grown, b + grown) if a >= end else (a, b) for a, b in written]
        written.append((start, start + len(hunk.post)))
    return data, tuple(placements)


def _find(hunk: Hunk, data: bytes, written: list[tuple[int, int]]) -> tuple[int, int, int] | None:
    """Start and end (in bytes) and line (from 0) of the position where the hunk applies, or None."""
    if not hunk.pre:
        return None if data else (0, 0, 0)
    matches = _matches(hunk, data)
    free = [(start, end) for start, end in matches if all(start >= b or end <= a for a, b in written)]
    if not free:
        return None
    expected = max(0, hunk.new_start - 1)
    lines = [(start, end, data.count(b"\n", 0, start)) for start, end in free]
    return min(lines, key=lambda place: (abs(place[2] - expected), place[2] < expected))


def _matches(hunk: Hunk, data: bytes) -> list[tuple[int, int]]:
    """Byte ranges of whole lines that match the hunk's old text."""
    size, last = len(hunk.pre), len(data)
    whole = hunk.pre.endswith(b"\n")
    if hunk.old_start <= 1:
        starts = [0] if data.startswith(hunk.pre) else []
    elif not hunk.trailing or not whole:
        starts = [last - size, last - size - 1]
    else:
        starts = _occurrences(hunk.pre, data)
    matches = []
    for start in starts:
        end = start + size
        if start < 0 or not _at_line_start(data, start) or not data.startswith(hunk.pre, start):
            continue
        if not whole and hunk.trailing and data[end:] == b"\n":
            end += 1  # Like git: the patch may remove the newline of an unchanged last line.
        if (hunk.trailing and whole) or end == last:
            matches.append((start, end))
    return matches


def _at_line_start(data: bytes, start: int) -> bool:
    return start == 0 or data[start - 1 : start] == b"\n"


def _occurrences(text: bytes, data: bytes) -> list[int]:
    found, at = [], data.find(text)
    while at >= 0:
        if _at_line_start(data, at):
            found.append(at)
        at = data.find(text, at + 1)
    return found
