"""The verl that launch scripts of a repository meet: with the patches that the repository has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.patchstack.apply.classify import classify, read_patch
from harness.settings import Settings
from harness.sources.tree import OverlayTree, Tree, TreeFile
from harness.workspace.planning.open_plan import open_matrix, patch_sources


@dataclass(frozen=True, kw_only=True)
class PatchedVerl:
    """The files of a verl with patches. applied: ids of these. others: of patches that do not apply."""

    tree: Tree
    applied: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def with_patches(settings: Settings, versions: Mapping[str, str], verl: Tree) -> PatchedVerl:
    """Apply the patches that the matrix has for this verl, in memory and in their order.

    Unlike in a cell, patches that do not apply leave the others in: whether the stack applies is decided by
    the check `patches`.
    """
    selected = patch_sources(settings, open_matrix(settings)).select("verl", versions)
    changes: dict[str, TreeFile | None] = {}
    applied: list[str] = []
    others: list[str] = []
    for patch in (one for one in selected if one.unread is None):
        verdict = classify(read_patch(patch.id, patch.data), OverlayTree(base=verl, changes=changes))
        (applied if verdict.verdict.applies else others).append(patch.id)
        if verdict.verdict.applies:
            changes.update(verdict.files)
    tree = OverlayTree(base=verl, changes=changes) if changes else verl
    return PatchedVerl(tree=tree, applied=tuple(applied), others=tuple(others))
