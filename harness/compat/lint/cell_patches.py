"""The verl of a cell with the cell's own patches, as its jobs meet it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.compat.patched_sources import apply_patches
from harness.errors import InputError, Location
from harness.matrix.model.environment_facets import UNREAD, UnreadPatches
from harness.measurements import read_shape
from harness.sources.git.branch_patches import read_patch_content
from harness.sources.tree import REGULAR, OverlayTree, Tree, TreeFile

#: What a configuration is composed of and checked with.
ENDINGS = (".py", ".yaml")


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """The files of verl with patches. misfits: ids of patches that do not apply exactly, and are left out."""

    tree: Tree
    misfits: tuple[str, ...] = ()


def unread_patches(patches: Sequence[Mapping[str, Any]]) -> UnreadPatches | None:
    """The patches of the facet that are not known; None if all are."""
    return next((read_shape(UnreadPatches, patch[UNREAD]) for patch in patches if UNREAD in patch), None)


def with_cell_patches(tree: Tree, patches: Sequence[Mapping[str, Any]], root: Path) -> PatchedTree:
    """Apply the patches of the facet `patches[verl]`. InputError if one changed after the plan was made.

    root: the checkout.
    """

    def read(path: str) -> str | None:
        return tree.read(path).decode("utf-8", "replace") if tree.mode(path) is not None else None

    diffs = [(str(patch["id"]), _text_of(patch, root)) for patch in patches]
    texts, _added, misfits = apply_patches(diffs, read, ENDINGS)
    changes = {
        path: TreeFile(mode=REGULAR, data=text.encode()) if text is not None else None
        for path, text in texts.items()
    }
    return PatchedTree(
        tree=OverlayTree(base=tree, changes=changes) if changes else tree, misfits=tuple(misfits)
    )


def _text_of(patch: Mapping[str, Any], root: Path) -> str:
    data = read_patch_content(patch["file"], patch["digest"], root)
    if data is None:
        where = Location(root / patch["file"])
        raise InputError("this patch changed after the plan was made", where=where, fix="run again")
    return data.decode("utf-8", "replace")
