"""Applying a parsed patch to a tree in memory: all or nothing, byte for byte, without fuzz.

A hunk goes where git would put it: every line of its old text must be there, exactly, and of several such
places the one nearest to where the header says counts. Nothing a hunk wrote is matched by a later one.
Stricter than git in two things: an old text that ends without a newline matches at the end of the file only
(if that end is context, git also finds it in the middle, and joins two lines), and a hunk with no old text
goes into an empty file only (unless it is for line 0 or 1, git puts it at the end of any file).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.patchstack.format.diff import ChangeKind, FilePatch, Hunk, Patch
from harness.sources.tree import EXECUTABLE, REGULAR, SYMLINK, OverlayTree, Tree, TreeFile, link_above


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a hunk went: its first line (from 1) in the file before the patch, and how far off its header is.

    `offset` is counted as git counts it: against the header's new line, in the file as earlier hunks left it.
    """

    hunk: Hunk
    line: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class HunkMismatch:
    """The first hunk (its number from 1) that has no place in the file as earlier hunks left it."""

    number: int
    hunk: Hunk
    data: bytes

    @property
    def why(self) -> str:
        """What the hunk expects and the file does not have."""
        name = f"hunk {self.number}"
        if not self.hunk.pre:
            return f"{name} has no context, so there is no telling where it belongs"
        lines = set(self.data.splitlines(keepends=True))
        for op, text in self.hunk.lines:
            if op != b"+" and text not in lines:
                shown = text.decode("utf-8", "replace").strip()[:120]
                return f"{name} (line {self.hunk.old_start}) expects a line that is not there: {shown!r}"
        return f"{name} (line {self.hunk.old_start}) finds its lines, but not one after the other"


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Why a file patch does not apply: a sentence about the whole file, or the hunk that has no place."""

    path: str
    about: str = ""
    misfit: HunkMismatch | None = None
    missing: bool = False
    unsafe: bool = False

    @property
    def hunk(self) -> int:
        """The hunk (from 1), 0 when it is about the whole file."""
        return self.misfit.number if self.misfit else 0

    @property
    def why(self) -> str:
        """The reason, worked out when asked for: most rejections only need to be counted."""
        return self.misfit.why if self.misfit else self.about


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """One file patch as applied: what was there (None: nothing), what is there now, where the hunks went."""

    patch: FilePatch
    before: TreeFile | None
    after: TreeFile | None
    placements: tuple[Placement, ...]


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A patch applied: every path it changed, with the new file or None where it was removed."""

    changes: tuple[FileChange, ...]
    files: Mapping[str, TreeFile | None]

    @property
    def offset(self) -> int:
        """The largest distance in lines, with its sign, of any hunk from where its header says."""
        offsets = [placement.offset for change in self.changes for placement in change.placements]
        return max(offsets, key=abs, default=0)


@dataclass(frozen=True, kw_only=True)
class NotApplied:
    """A patch that does not apply, with every file's reason."""

    rejections: tuple[Rejection, ...]


def apply_patch(patch: Patch, tree: Tree, *, every_reason: bool = True) -> Applied | NotApplied:
    """Apply a whole patch, later files seeing what earlier ones did. `tree` itself is not changed.

    Without `every_reason`, once a hunk has no place the remaining files are looked at only for what weighs
    more: being unsafe, or not there.
    """
    files: dict[str, TreeFile | None] = {}
    changes: list[FileChange] = []
    rejections: list[Rejection] = []
    for file in patch.files:
        now = OverlayTree(base=tree, changes=files) if files else tree
        if rejections and not every_reason:
            refused = _refusal(file, now)
            rejections += [refused] if refused else []
            continue
        done = _apply_file(file, now)
        if isinstance(done, Rejection):
            rejections.append(done)
            continue
        changes.append(done)
        if file.change in {ChangeKind.RENAME, ChangeKind.DELETE} and file.old_path:
            files[file.old_path] = None
        if file.new_path and file.change is not ChangeKind.DELETE:
            files[file.new_path] = done.after
    if rejections:
        return NotApplied(rejections=tuple(rejections))
    return Applied(changes=tuple(changes), files=files)


def _apply_file(file: FilePatch, tree: Tree) -> FileChange | Rejection:
    refused = _refusal(file, tree)
    if refused:
        return refused
    before = None
    if file.change is not ChangeKind.CREATE:
        mode = tree.mode(file.source) or REGULAR
        before = TreeFile(data=tree.read(file.source), mode=mode)
    placed = place_hunks(file.hunks, before.data if before else b"")
    if isinstance(placed, HunkMismatch):
        return Rejection(path=file.source, misfit=placed)
    data, placements = placed
    if file.change is ChangeKind.DELETE:
        if data:
            return Rejection(
                path=file.path, about="removing it would throw away content the patch does not know"
            )
        return FileChange(patch=file, before=before, after=None, placements=placements)
    return FileChange(
        patch=file,
        before=before,
        after=TreeFile(data=data, mode=_new_mode(file, before)),
        placements=placements,
    )


def _refusal(file: FilePatch, tree: Tree) -> Rejection | None:
    for path in (file.old_path, file.new_path):
        link = link_above(tree, path) if path else None
        if link:
            return Rejection(path=path or "", about=f"it lies behind the symbolic link {link}", unsafe=True)
    if file.binary:
        return Rejection(
            path=file.path, about="the change is binary; only text can be applied without its objects"
        )
    if file.change is not ChangeKind.CREATE:
        mode = tree.mode(file.source)
        if mode is None:
            return Rejection(path=file.source, about="there is no such file", missing=True)
        if (mode == SYMLINK) != file.is_symlink:
            kinds = ("a symbolic link", "a plain file")
            found, wanted = kinds if mode == SYMLINK else kinds[::-1]
            return Rejection(
                path=file.source, about=f"it is {found}, the patch expects {wanted}", unsafe=True
            )
    new = file.new_path
    if (
        new
        and file.change in {ChangeKind.CREATE, ChangeKind.RENAME, ChangeKind.COPY}
        and new != file.old_path
    ):
        if tree.mode(new) is not None:
            return Rejection(path=new, about="it is already there")
        if tree.is_folder(new):
            return Rejection(path=new, about="it is a folder")
    if file.new_mode and file.new_mode[:3] == "120" and not file.hunks and file.change is ChangeKind.CREATE:
        return Rejection(path=file.path, about="it would be a symbolic link to nothing", unsafe=True)
    if file.new_mode and file.new_mode[:3] == "120" and file.change is ChangeKind.MODIFY:
        return Rejection(path=file.path, about="it would turn a file into a symbolic link", unsafe=True)
    return None


def _new_mode(file: FilePatch, before: TreeFile | None) -> str:
    asked = file.new_mode
    if asked is None:
        return before.mode if before else REGULAR
    if asked[:3] == "120":
        return SYMLINK
    return EXECUTABLE if int(asked, 8) & 0o100 else REGULAR


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
    """Start and end (bytes) and line (from 0) of the place of a hunk, or None."""
    if not hunk.pre:
        return None if data else (0, 0, 0)
    places = _places(hunk, data)
    free = [(start, end) for start, end in places if all(start >= b or end <= a for a, b in written)]
    if not free:
        return None
    wanted = max(0, hunk.new_start - 1)
    lines = [(start, end, data.count(b"\n", 0, start)) for start, end in free]
    return min(lines, key=lambda place: (abs(place[2] - wanted), place[2] < wanted))


def _places(hunk: Hunk, data: bytes) -> list[tuple[int, int]]:
    """Where the hunk's old text stands, as byte ranges of whole lines."""
    size, last = len(hunk.pre), len(data)
    whole = hunk.pre.endswith(b"\n")
    if hunk.old_start <= 1:
        starts = [0] if data.startswith(hunk.pre) else []
    elif not hunk.trailing or not whole:
        starts = [last - size, last - size - 1]
    else:
        starts = _occurrences(hunk.pre, data)
    places = []
    for start in starts:
        end = start + size
        if start < 0 or not _at_line_start(data, start) or not data.startswith(hunk.pre, start):
            continue
        if not whole and hunk.trailing and data[end:] == b"\n":
            end += 1  # As git has it: an unchanged last line may lose its newline to the patch.
        if (hunk.trailing and whole) or end == last:
            places.append((start, end))
    return places


def _at_line_start(data: bytes, start: int) -> bool:
    return start == 0 or data[start - 1 : start] == b"\n"


def _occurrences(text: bytes, data: bytes) -> list[int]:
    found, at = [], data.find(text)
    while at >= 0:
        if _at_line_start(data, at):
            found.append(at)
        at = data.find(text, at + 1)
    return found
