"""Moving patches to a new base: the clean part done, and for each conflict everything needed to finish it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location
from harness.patchstack.apply import Misfit, place_hunks
from harness.patchstack.classify import Readable, classify
from harness.patchstack.diff import Change, FilePatch
from harness.patchstack.lineage import Lineage, lineage
from harness.patchstack.merge import MARKER, split_lines
from harness.patchstack.render import render_patch
from harness.patchstack.threeway import ThreeWay, difference, sides
from harness.patchstack.verdict import PatchVerdict, Verdict
from harness.sources.git import Repository
from harness.sources.tree import File, OverlayTree, Tree, path_problem

KIT = "kit.json"
#: Folders of a kit: the files at the new base; the same with the patch and markers, to be edited; and the
#: patched files of the last commit that took the patch, which is what the result should do.
_BASE, _TREE, _WANTED = "base", "tree", "wanted"
_MARKERS = (MARKER[0], MARKER[2])


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
    tree: Tree = repository.tree(to)
    blobs = repository
    done: list[Rebased] = []
    for readable in patches:
        if progress:
            progress(len(done), len(patches))
        verdict = classify(readable, tree, blobs)
        if verdict.verdict.applies or verdict.verdict in {Verdict.MERGED, Verdict.LINE_ENDINGS}:
            done.append(
                Rebased(patch=readable.name, verdict=verdict, body=_made_again(readable, verdict, tree))
            )
            tree = OverlayTree(base=tree, changes=dict(verdict.files))
        elif verdict.verdict in {Verdict.CONFLICT, Verdict.MISSING_TARGET, Verdict.MISPLACED}:
            history = lineage(repository, readable, to)
            kit = _write_kit(readable, verdict, tree, blobs, history, out / _folder_name(readable.name))
            done.append(Rebased(patch=readable.name, verdict=verdict, history=history, kit=kit))
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


def finish(kit: Path) -> bytes:
    """The patch a person made of a kit: its `tree` against its `base`.

    InputError when conflict markers are left, or nothing was changed.
    """
    facts = _facts(kit)
    files = {}
    for path in facts["files"]:
        if path_problem(path):
            raise InputError(
                f"{path!r} is no path of a kit", where=Location(kit / KIT), fix="make the kit again"
            )
        before, after = (_content(kit / part / path) for part in (_BASE, _TREE))
        for number, line in enumerate(after.split(b"\n"), start=1):
            if line.startswith(_MARKERS):
                raise InputError(
                    "a conflict marker is left",
                    where=Location(kit / _TREE / path, number),
                    fix="resolve it, then run the same command again",
                )
        files[path] = (before, after)
    body = difference(files)
    if not body:
        raise InputError("the tree of this kit is its base: nothing was patched", where=Location(kit / _TREE))
    return body


def _facts(kit: Path) -> dict[str, Any]:
    try:
        facts = json.loads((kit / KIT).read_text(encoding="utf-8"))
        return {**facts, "files": [str(path) for path in facts["files"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "this is no rebase kit",
            where=Location(kit / KIT),
            why=str(error),
            fix="make one with `patches rebase`",
        ) from error


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _write_kit(
    readable: Readable, verdict: PatchVerdict, tree: Tree, blobs: Repository, history: Lineage, folder: Path
) -> Path:
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            "a kit is here already",
            where=Location(folder),
            fix="finish it or remove it, or give another --out",
        )
    patch = readable.patch
    good = blobs.tree(history.good.id) if history.good else None
    contents = _marked(readable, tree, blobs, good)
    folder.mkdir(parents=True, exist_ok=True)
    for path, (before, after) in contents.items():
        _put(folder / _BASE / path, before)
        _put(folder / _TREE / path, after)
    if good:
        for path, wanted in classify(readable, good, blobs).files.items():
            _put(folder / _WANTED / path, wanted.data if wanted else None)
    if patch:
        (folder / "original.patch").write_bytes(render_patch(patch))
    candidate = difference(
        {path: (before or b"", after or b"") for path, (before, after) in contents.items()}
    )
    (folder / "candidate.patch").write_bytes(candidate)
    facts = {
        "schema": {"name": "npu-matrix/rebase-kit", "version": 1},
        "to": tree.label,
        "files": sorted(contents),
        **Rebased(patch=readable.name, verdict=verdict, history=history, kit=folder).to_json(),
        "continue": ["npu-matrix", "patches", "rebase", "--continue", str(folder)],
    }
    (folder / KIT).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return folder


def _put(file: Path, data: bytes | None) -> None:
    if data is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _marked(
    readable: Readable, tree: Tree, blobs: Repository, good: Tree | None
) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Path -> content at the new base, and with the patch in it as far as it goes, markers elsewhere."""
    patch = readable.patch
    both = sides(patch, tree, blobs, good) if patch else None
    if both:
        return {one.file.path: (one.ours.data, _merged(one, tree.label, readable.name)) for one in both}
    return {
        file.path: _half_applied(file, tree, readable.name)
        for file in (patch.files if patch else ())
        if file.hunks
    }


def _merged(one: ThreeWay, ours: str, theirs: str) -> bytes:
    return one.merge(ours_name=ours, theirs_name=theirs).data


def _half_applied(file: FilePatch, tree: Tree, name: str) -> tuple[bytes | None, bytes | None]:
    """Without the original file: hunks that fit are in, others stand between markers where they belong."""
    before = tree.read(file.source) if tree.mode(file.source) else None
    data = before or b""
    for hunk in file.hunks:
        placed = place_hunks((hunk,), data)
        if not isinstance(placed, Misfit):
            data = placed[0]
            continue
        lines = split_lines(data)
        at = min(len(lines), max(0, hunk.new_start - 1))
        if at and not lines[at - 1].endswith(b"\n"):
            lines[at - 1] += b"\n"
        wanted = hunk.post if hunk.post.endswith(b"\n") else hunk.post + b"\n"
        conflict = [
            MARKER[0] + tree.label.encode() + b"\n",
            MARKER[1],
            wanted,
            MARKER[2] + name.encode() + b"\n",
        ]
        data = b"".join([*lines[:at], *conflict, *lines[at:]])
    return before, data


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".patch")).strip("-.") or "patch"


def rebased_files(results: Sequence[Rebased]) -> dict[str, File]:
    """File name -> content of every patch that was done, ready to be written."""
    return {
        f"{_folder_name(result.patch)}.patch": File(data=result.body)
        for result in results
        if result.body is not None
    }
