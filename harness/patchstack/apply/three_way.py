"""The inputs of a three-way merge: the file a patch was made from, the tree's file, and the patch's edits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from harness.patchstack.apply.line_merge import LineEdit, MergeResult, PatchEdits, merge_lines
from harness.patchstack.apply.patch_apply import HunkMismatch, place_hunks
from harness.patchstack.format.diff import ChangeKind, FilePatch, Patch
from harness.sources.tree import HasBlobs, Tree, TreeFile


@dataclass(frozen=True, kw_only=True)
class ThreeWayInput:
    """One file to merge: the content the patch was made from, this tree's content, and the patch's edits."""

    file: FilePatch
    base: bytes
    ours: TreeFile
    theirs: PatchEdits

    @property
    def must_conflict(self) -> bool:
        """Whether the merge certainly has conflicts."""
        return self.theirs.must_conflict(self.ours.data)

    def merge(self, ours_name: str = "ours", theirs_name: str = "patch") -> MergeResult:
        """The merged file."""
        return merge_lines(
            self.base, self.ours.data, self.theirs.edits, ours_name=ours_name, theirs_name=theirs_name
        )


def three_way_inputs(
    patch: Patch, tree: Tree, blobs: HasBlobs | None, origin: Tree | None = None
) -> list[ThreeWayInput] | None:
    """The inputs for every file of a patch. `origin`: a tree to which the patch applies, if one is known.

    None if an original file is not available, or the patch creates, removes or renames files.
    """
    found = []
    for file in patch.files:
        mode = tree.mode(file.source)
        if file.change is not ChangeKind.MODIFY or mode is None:
            return None
        base = blobs.blob(file.index_old) if blobs and file.index_old else None
        if base is None and origin and origin.mode(file.source):
            base = origin.read(file.source)
        theirs = _edits(file, base) if base is not None else None
        if base is None or theirs is None:
            return None
        ours = TreeFile(data=tree.read(file.source), mode=mode)
        found.append(ThreeWayInput(file=file, base=base, ours=ours, theirs=theirs))
    return found


@lru_cache(maxsize=256)
def _edits(file: FilePatch, base: bytes) -> PatchEdits | None:
    """The edits of a patch to the file it was made from; None if it does not apply to that file."""
    placed = place_hunks(file.hunks, base)
    if isinstance(placed, HunkMismatch):
        return None
    found: list[LineEdit] = []
    for placement in sorted(placed[1], key=lambda place: place.line):
        at = start = placement.line - 1
        added: list[bytes] = []
        for op, text in [*placement.hunk.lines, (b" ", b"")]:
            if op == b"+":
                added.append(text)
            elif op == b"-":
                at += 1
            else:
                if added or at > start:
                    found.append(LineEdit(start=start, end=at, lines=tuple(added)))
                at += 1
                start, added = at, []
    return PatchEdits.of(base, found)
