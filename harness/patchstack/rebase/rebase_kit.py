"""Rebase kits: all a person needs to finish one patch that conflicts, around a git work tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import InputError, Location
from harness.patchstack.apply.classify import LoadedPatch, classify
from harness.patchstack.apply.line_merge import MARKER, merge_lines, split_lines
from harness.patchstack.apply.patch_apply import HunkMismatch, place_hunks
from harness.patchstack.apply.patch_verdict import ClassifiedPatch
from harness.patchstack.apply.three_way import ThreeWayInput, three_way_inputs
from harness.patchstack.format.diff import FilePatch
from harness.patchstack.format.diff_writer import diff_files, render_patch
from harness.patchstack.history.breakage import Breakage
from harness.patchstack.rebase.worktree import WorktreeFile, changed_files, make_worktree
from harness.sources.git.git_repository import Repository
from harness.sources.tree import Tree, TreeFile, path_problem

KIT, README = "kit.json", "KIT.md"
#: Folders of a kit: the work tree to edit, and the patched files of the last commit that took the patch,
#: which is what the result should do.
TREE, WANTED = "tree", "wanted"
_MARKERS = (MARKER[0], MARKER[2])


def write_kit(
    repository: Repository,
    loaded: LoadedPatch,
    verdict: ClassifiedPatch,
    tree: Tree,
    earlier: Mapping[str, TreeFile | None],
    commit: str,
    breakage: Breakage,
    folder: Path,
    facts: Mapping[str, Any],
) -> None:
    """Write a kit: `tree`, the clone at `commit` with `earlier` patches committed and this one's conflicts.

    `tree` is that same base, `facts` go into kit.json. InputError when the folder is in use.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            "a kit is here already",
            where=Location(folder),
            fix="finish it or remove it, or give another --out",
        )
    good = repository.tree(breakage.last_good.id) if breakage.last_good else None
    contents = _marked(breakage.patch_there or loaded, tree, repository, good)
    folder.mkdir(parents=True, exist_ok=True)
    branch = f"rebase/{folder.name}"
    make_worktree(folder / TREE, repository, commit, branch, earlier, contents)
    if good:
        for path, wanted in classify(loaded, good, repository).files.items():
            if wanted:
                (folder / WANTED / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / WANTED / path).write_bytes(wanted.data)
    if loaded.patch:
        (folder / "original.patch").write_bytes(render_patch(loaded.patch))
    candidate = diff_files({path: (one.ours, one.merged) for path, one in contents.items()})
    (folder / "candidate.patch").write_bytes(candidate)
    told = {
        "schema": {"name": "npu-matrix/rebase-kit", "version": 2},
        "to": commit,
        "files": sorted(contents),
        **facts,
        "continue": ["npu-matrix", "patches", "rebase", "--continue", str(folder)],
    }
    (folder / KIT).write_text(json.dumps(told, indent=1), encoding="utf-8")
    (folder / README).write_text(_readme(loaded.name, verdict, breakage, commit, folder), encoding="utf-8")


def finish_kit(kit: Path) -> bytes:
    """The patch a person made of a kit: its work tree against the commit it stands on.

    InputError when conflict markers are left, or nothing was changed.
    """
    _check(kit)
    files = changed_files(kit / TREE)
    for path, (_before, after) in files.items():
        for number, line in enumerate((after or b"").split(b"\n"), start=1):
            if line.startswith(_MARKERS):
                raise InputError(
                    "a conflict marker is left",
                    where=Location(kit / TREE / path, number),
                    fix="resolve it, then run the same command again",
                )
    body = diff_files(files)
    if not body:
        raise InputError("the tree of this kit is its base: nothing was patched", where=Location(kit / TREE))
    return body


def _check(kit: Path) -> None:
    try:
        facts = json.loads((kit / KIT).read_text(encoding="utf-8"))
        files = [str(path) for path in facts["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "this is no rebase kit",
            where=Location(kit / KIT),
            why=str(error),
            fix="make one with `patches rebase`",
        ) from error
    for path in files:
        if path_problem(path):
            raise InputError(
                f"{path!r} is no path of a kit", where=Location(kit / KIT), fix="make the kit again"
            )


def _marked(
    loaded: LoadedPatch, tree: Tree, repository: Repository, good: Tree | None
) -> dict[str, WorktreeFile]:
    """Path -> its sides, and the content with the patch in it as far as it goes, markers elsewhere."""
    patch = loaded.patch
    both = three_way_inputs(patch, tree, repository, good) if patch else None
    if both:
        return {one.file.path: _merged(one, tree.label, loaded.name) for one in both}
    return {
        file.path: _half_applied(file, tree, loaded.name)
        for file in (patch.files if patch else ())
        if file.hunks
    }


def _merged(one: ThreeWayInput, ours: str, theirs: str) -> WorktreeFile:
    merged = one.merge(ours_name=ours, theirs_name=theirs)
    return WorktreeFile(
        base=one.base,
        ours=one.ours.data,
        theirs=merge_lines(one.base, one.base, one.theirs.edits).data,
        merged=merged.data,
        conflicts=bool(merged.conflicts),
    )


def _half_applied(file: FilePatch, tree: Tree, name: str) -> WorktreeFile:
    """Without the original file: hunks that fit are in, others stand between markers where they belong."""
    before = tree.read(file.source) if tree.mode(file.source) else None
    data = before or b""
    for hunk in file.hunks:
        placed = place_hunks((hunk,), data)
        if not isinstance(placed, HunkMismatch):
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
    return WorktreeFile(base=None, ours=before, theirs=None, merged=data, conflicts=True)


def _readme(name: str, verdict: ClassifiedPatch, breakage: Breakage, commit: str, folder: Path) -> str:
    def said(commits: list[str]) -> list[str]:
        return [f"- {_plain(text)}" for text in commits] or ["- none was found"]

    touches = [
        f"`{touch.commit.id[:12]}` {touch.commit.date[:10]} {touch.commit.subject}: {touch.path}, "
        + (f"hunk {touch.hunk}" if touch.hunk else "removed")
        for touch in breakage.touched_by
    ]
    lines = [
        f"# {_plain(name)} at {commit[:12]}: {verdict.verdict}",
        "",
        *said(list(verdict.reasons)),
        "",
        "Upstream's commits that touched its lines, oldest first (`git show` in `tree` shows them):",
        "",
        *said(touches),
        "",
        f"- `{TREE}`: a git work tree at the new base. `git status` names the files with conflict markers.",
        f"- `{WANTED}`: the patched files at the last commit that took the patch, where there is one.",
        "- `original.patch`, and `candidate.patch`: the three-way merge, with its markers.",
        "",
        f"Resolve the files in `{TREE}`; there is no need to commit. Then:",
        "",
        f"    npu-matrix patches rebase --continue {folder}",
        "",
    ]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """What others wrote, on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
