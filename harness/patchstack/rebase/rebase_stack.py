"""Rebasing patches to a new base commit; a patch that conflicts gets a rebase kit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.patchstack.apply.classify import LoadedPatch, classify
from harness.patchstack.apply.patch_verdict import ClassifiedPatch, PatchVerdict
from harness.patchstack.format.diff import ChangeKind
from harness.patchstack.format.diff_writer import diff_files, render_patch
from harness.patchstack.history.breakage import find_breakage
from harness.patchstack.rebase.rebase_kit import RebasedPatch, write_kit
from harness.sources.git.git_repository import Repository
from harness.sources.tree import OverlayTree, Tree, TreeFile


def rebase_stack(
    repository: Repository,
    patches: Sequence[LoadedPatch],
    to: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[RebasedPatch, ...]:
    """Rebase each patch to commit `to`, on top of the patches before it; rebase kits are written below `out`.

    A patch that conflicts is skipped for the patches after it. `progress` is called with (done, total).
    InputError if the folder of a kit is not empty.
    """
    base = repository.tree(to)
    changes: dict[str, TreeFile | None] = {}
    done: list[RebasedPatch] = []
    for loaded in patches:
        if progress:
            progress(len(done), len(patches))
        tree: Tree = OverlayTree(base=base, changes=dict(changes)) if changes else base
        verdict = classify(loaded, tree, repository)
        if verdict.verdict.applies or verdict.verdict in {PatchVerdict.MERGED, PatchVerdict.LINE_ENDINGS}:
            data = _regenerated(loaded, verdict, tree)
            done.append(RebasedPatch(patch=loaded.name, verdict=verdict, data=data))
            changes.update(verdict.files)
        elif verdict.verdict in {PatchVerdict.CONFLICT, PatchVerdict.MISSING_TARGET, PatchVerdict.MISPLACED}:
            breakage = find_breakage(repository, loaded, to)
            folder = out / _folder_name(loaded.name)
            result = RebasedPatch(patch=loaded.name, verdict=verdict, breakage=breakage, kit=folder)
            write_kit(result, loaded, repository, base.commit, tree, changes)
            done.append(result)
        else:
            done.append(RebasedPatch(patch=loaded.name, verdict=verdict))
    return tuple(done)


def _regenerated(loaded: LoadedPatch, verdict: ClassifiedPatch, tree: Tree) -> bytes:
    """The patch with the line numbers and blob ids of the new base."""
    patch = loaded.patch
    if patch is None or any(file.change is not ChangeKind.MODIFY or file.new_mode for file in patch.files):
        return render_patch(patch) if patch else b""
    return diff_files(
        {path: (tree.read(path), file.data) for path, file in verdict.files.items() if file is not None}
    )


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".patch")).strip("-.") or "patch"


def rebased_files(results: Sequence[RebasedPatch]) -> dict[str, TreeFile]:
    """File name -> content of every patch that was rebased."""
    return {
        f"{_folder_name(result.patch)}.patch": TreeFile(data=result.data)
        for result in results
        if result.data is not None
    }
