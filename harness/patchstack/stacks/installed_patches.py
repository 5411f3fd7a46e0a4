"""Whether patches are in files that somebody patched: the result probe of a patch plugin.

A patch is there if it can be undone. The last patch is undone first, because later ones may have changed the
same lines. A line that somebody edited afterwards is found, and so is a patch of which only some files were
written.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.apply.patch_apply import Applied, apply_patch
from harness.sources.tree import OverlayTree, Tree, TreeFile


class Presence(enum.StrEnum):
    """Whether a patch is in a tree. CHANGED: partly, or its lines were edited later."""

    PRESENT = "present"
    MISSING = "missing"
    CHANGED = "changed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class ProbedPatch:
    """A patch and whether it is there. reasons: what is not as the patch leaves it, by file."""

    patch: str
    presence: Presence
    reasons: tuple[str, ...] = ()


def probe_patches(tree: Tree, patches: Sequence[LoadedPatch]) -> tuple[ProbedPatch, ...]:
    """Whether each patch of a stack, in order, is in the tree, which is not changed."""
    undone: dict[str, TreeFile | None] = {}
    found = []
    for loaded in reversed(patches):
        now = OverlayTree(base=tree, changes=undone) if undone else tree
        probed, files = _probe(loaded, now)
        undone |= files
        found.append(probed)
    return tuple(reversed(found))


def _probe(loaded: LoadedPatch, tree: Tree) -> tuple[ProbedPatch, dict[str, TreeFile | None]]:
    if loaded.patch is None:
        unreadable = ProbedPatch(
            patch=loaded.name,
            presence=Presence.UNREADABLE,
            reasons=(str(loaded.error),) if loaded.error else (),
        )
        return unreadable, {}
    undone = apply_patch(loaded.patch.undo, tree)
    if isinstance(undone, Applied):
        return ProbedPatch(patch=loaded.name, presence=Presence.PRESENT), dict(undone.files)
    absent = isinstance(apply_patch(loaded.patch, tree), Applied)
    reasons = tuple(f"{one.path}: {one.why}" for one in undone.rejections)
    presence = Presence.MISSING if absent else Presence.CHANGED
    return ProbedPatch(patch=loaded.name, presence=presence, reasons=() if absent else reasons), {}
