"""What launch scripts of a repository meet: verl and vllm-ascend with the patches of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.apply.stack_apply import apply_stack
from harness.settings import Settings
from harness.sources.tree import OverlayTree, Tree
from harness.workspace.planning.open_plan import open_matrix, patch_sources


@dataclass(frozen=True, kw_only=True)
class PatchedUpstream:
    """The files of a package with patches. applied: ids of these. others: of patches that do not apply."""

    tree: Tree
    applied: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def with_patches(
    settings: Settings, upstream: str, versions: Mapping[str, str], tree: Tree
) -> PatchedUpstream:
    """Apply the patches that the matrix has for this version of `upstream`, in memory and in their order.

    Unlike in a cell, patches that do not apply leave the others in: whether the stack applies is decided by
    the check `patches`.
    """
    selected = patch_sources(settings, open_matrix(settings)).select(upstream, versions)
    known = [read_patch(patch.id, patch.data) for patch in selected if patch.unread is None]
    verdicts = apply_stack(tree, known).verdicts
    fitting = [one for one in verdicts if one.verdict.applies]
    changes = {path: file for one in fitting for path, file in one.files.items()}
    missing = (one for one in verdicts if one.verdict is not PatchVerdict.ALREADY_UPSTREAM)
    return PatchedUpstream(
        tree=OverlayTree(base=tree, changes=changes) if changes else tree,
        applied=tuple(one.patch for one in fitting),
        others=tuple(one.patch for one in missing if not one.verdict.applies),
    )
