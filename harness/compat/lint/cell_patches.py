"""The verl and vllm-ascend of a cell with the cell's own patches, as its jobs meet them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.compat.patched_sources import PatchFacet, apply_patches, patch_texts
from harness.sources.tree import REGULAR, OverlayTree, Tree, TreeFile

#: What a configuration is composed of and checked with.
ENDINGS = (".py", ".yaml")


@dataclass(frozen=True, kw_only=True)
class PatchedTree:
    """The files of a package with patches. misfits: ids of patches that do not apply, and are left out."""

    tree: Tree
    misfits: tuple[str, ...] = ()


def with_cell_patches(tree: Tree, patches: PatchFacet, root: Path) -> PatchedTree:
    """Apply the patches of the facet `patches[UPSTREAM]`. InputError if one changed after the plan was made.

    root: the checkout.
    """

    def read(path: str) -> str | None:
        return tree.read(path).decode("utf-8", "replace") if tree.mode(path) is not None else None

    texts, _added, misfits = apply_patches(patch_texts(patches, root), read, ENDINGS)
    changes = {
        path: TreeFile(mode=REGULAR, data=text.encode()) if text is not None else None
        for path, text in texts.items()
    }
    return PatchedTree(
        tree=OverlayTree(base=tree, changes=changes) if changes else tree, misfits=tuple(misfits)
    )
