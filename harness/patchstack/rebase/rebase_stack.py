"""Moving patches to a new base: the clean part done, and for each conflict everything needed to finish it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.patchstack.apply.classify import Readable, classify
from harness.patchstack.apply.three_way import difference
from harness.patchstack.apply.patch_verdict import PatchVerdict, Verdict
from harness.patchstack.format.diff import Change
from harness.patchstack.format.diff_writer import render_patch
from harness.patchstack.history.breakage import Lineage, lineage
from harness.patchstack.rebase.rebase_kit import write_kit
from harness.sources.git.git_repository import Repository
from harness.sources.tree import File, OverlayTree, Tree


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """One patch at the new base.

    body: the patch made for the new base; None when it is upstream already or needs a person.
    kit: the folder to finish it in, when it needs a person.
    """

    patch: str
    verdict: PatchVerdict
    body: bytes | None = None
    history: Lineage | None = None
    kit: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Verdict, where the result is, and the commits behind a conflict."""
        history = self.history
        return {
            **self.verdict.to_json(),
            "rebased": self.body is not None,
            "kit": str(self.kit) if self.kit else None,
            "last_good": history.good.to_json() if history and history.good else None,
            "broken_by": history.broke.to_json() if history and history.broke else None,
            "touched_by": [
                {**touch.commit.to_json(), "path": touch.path, "hunk": touch.hunk}
                for touch in (history.touches if history else ())
            ],
        }


def rebase(
    repository: Repository,
    patches: Sequence[Readable],
    to: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Rebased, ...]:
    """Make each patch, in order, for commit `to`, later ones on top of earlier ones; kits go below `out`.

    A patch that conflicts is left out of the base of later ones; `progress` is told (done, all).
    InputError when a kit's folder is in use.
    """
    base = repository.tree(to)
    changes: dict[str, File | None] = {}
    done: list[Rebased] = []
    for readable in patches:
        if progress:
            progress(len(done), len(patches))
        tree: Tree = OverlayTree(base=base, changes=dict(changes)) if changes else base
        verdict = classify(readable, tree, repository)
        if verdict.verdict.applies or verdict.verdict in {Verdict.MERGED, Verdict.LINE_ENDINGS}:
            body = _made_again(readable, verdict, tree)
            done.append(Rebased(patch=readable.name, verdict=verdict, body=body))
            changes.update(verdict.files)
        elif verdict.verdict in {Verdict.CONFLICT, Verdict.MISSING_TARGET, Verdict.MISPLACED}:
            history = lineage(repository, readable, to)
            folder = out / _folder_name(readable.name)
            result = Rebased(patch=readable.name, verdict=verdict, history=history, kit=folder)
            write_kit(
                repository,
                readable,
                verdict,
                tree,
                changes,
                base.commit,
                history,
                folder,
                result.to_json(),
            )
            done.append(result)
        else:
            done.append(Rebased(patch=readable.name, verdict=verdict))
    return tuple(done)


def _made_again(readable: Readable, verdict: PatchVerdict, tree: Tree) -> bytes:
    """The patch with the line numbers and fingerprints of the new base."""
    patch = readable.patch
    if patch is None or any(file.change is not Change.MODIFY or file.new_mode for file in patch.files):
        return render_patch(patch) if patch else b""
    return difference(
        {path: (tree.read(path), file.data) for path, file in verdict.files.items() if file is not None}
    )


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".patch")).strip("-.") or "patch"


def rebased_files(results: Sequence[Rebased]) -> dict[str, File]:
    """File name -> content of every patch that was done, ready to be written."""
    return {
        f"{_folder_name(result.patch)}.patch": File(data=result.body)
        for result in results
        if result.body is not None
    }
