"""Rebase kits: folders with a git work tree, in which a user resolves the conflicts of a patch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
from harness.patchstack.stacks.stack_export import printable
from harness.serialisation import JsonValue
from harness.sources.git.git_repository import Repository
from harness.sources.tree import Tree, TreeFile, path_problem

KIT, README = "kit.json", "KIT.md"
#: Folders of a kit: the work tree to edit, and the patched files at the last commit to which the patch
#: applied, which show what the result should do.
TREE, EXPECTED = "tree", "wanted"
#: The three-way merge: a patch, or text to read if it has conflict markers.
CANDIDATE, CONFLICTS = "candidate.patch", "conflicts-DO-NOT-APPLY.txt"
_CONFLICTS_HEAD = b"| Do not apply: this merge has conflict markers. Resolve them in the folder `tree`.\n|\n"
_MARKERS = (MARKER[0], MARKER[2])


@dataclass(frozen=True, kw_only=True)
class RebasedPatch:
    """The outcome of rebasing one patch.

    data: the patch for the new base; None if it is upstream already or conflicts.
    kit: the folder of the rebase kit, if it conflicts.
    """

    patch: str
    verdict: ClassifiedPatch
    data: bytes | None = None
    breakage: Breakage | None = None
    kit: Path | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """The verdict, the kit, and the commits that caused a conflict."""
        breakage = self.breakage
        return {
            **self.verdict.to_json(),
            "rebased": self.data is not None,
            "kit": str(self.kit) if self.kit else None,
            "last_good": breakage.last_good.to_json() if breakage and breakage.last_good else None,
            "broken_by": breakage.broken_by.to_json() if breakage and breakage.broken_by else None,
            "touched_by": [
                {**touch.commit.to_json(), "path": touch.path, "hunk": touch.hunk}
                for touch in (breakage.touched_by if breakage else ())
            ],
        }


def write_kit(
    result: RebasedPatch,
    loaded: LoadedPatch,
    repository: Repository,
    commit: str,
    tree: Tree,
    earlier: Mapping[str, TreeFile | None],
) -> None:
    """Write the kit of a conflicting patch into the folder `result.kit`.

    Its work tree is a clone at `commit` in which the changes of the `earlier` patches are committed and the
    files of this patch have conflict markers. tree: the tree of `commit` with `earlier`. InputError when
    the folder is not empty.
    """
    folder, breakage = result.kit, result.breakage
    if folder is None or breakage is None:
        raise ValueError(f"{result.patch} needs no rebase kit")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            "this folder already contains a rebase kit",
            where=Location(folder),
            fix="finish or remove the kit, or choose another folder with --out",
        )
    good = repository.tree(breakage.last_good.id) if breakage.last_good else None
    contents = _merged_files(breakage.applicable or loaded, tree, repository, good)
    folder.mkdir(parents=True, exist_ok=True)
    branch = f"rebase/{folder.name}"
    make_worktree(folder / TREE, repository, commit, branch, earlier, contents)
    if good:
        for path, expected in classify(loaded, good, repository).files.items():
            if expected:
                (folder / EXPECTED / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / EXPECTED / path).write_bytes(expected.data)
    if loaded.patch:
        (folder / "original.patch").write_bytes(render_patch(loaded.patch))
    candidate = diff_files({path: (merge.ours, merge.merged) for path, merge in contents.items()})
    if any(merge.conflicts for merge in contents.values()):
        # Neither named as a patch nor readable as one: git would apply conflict markers like any other text.
        candidate = b"".join(b"| " + line for line in candidate.splitlines(keepends=True))
        (folder / CONFLICTS).write_bytes(_CONFLICTS_HEAD + candidate)
    else:
        (folder / CANDIDATE).write_bytes(candidate)
    facts: dict[str, JsonValue] = {
        "schema": {"name": "npu-matrix/rebase-kit", "version": 2},
        "to": commit,
        "files": [*sorted(contents)],
        **result.to_json(),
        "continue": ["npu-matrix", "patches", "rebase", "--continue", str(folder)],
    }
    (folder / KIT).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    (folder / README).write_text(_readme(result, breakage, commit, folder), encoding="utf-8")


def finish_kit(kit: Path) -> bytes:
    """The finished patch of a kit: the differences between its work tree and the tree's commit.

    InputError if conflict markers are left, or nothing was changed.
    """
    _check(kit)
    files = changed_files(kit / TREE)
    for path, (_before, after) in files.items():
        for number, line in enumerate((after or b"").split(b"\n"), start=1):
            if line.startswith(_MARKERS):
                raise InputError(
                    "this file still has a conflict marker",
                    where=Location(kit / TREE / path, number),
                    fix="resolve it, then run the same command again",
                )
    patch = diff_files(files)
    if not patch:
        raise InputError("the work tree of this kit has no changes", where=Location(kit / TREE))
    return patch


def _check(kit: Path) -> None:
    try:
        facts = json.loads((kit / KIT).read_text(encoding="utf-8"))
        files = [str(path) for path in facts["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "this is not a rebase kit",
            where=Location(kit / KIT),
            why=str(error),
            fix="create one with `npu-matrix patches rebase`",
        ) from error
    for path in files:
        if path_problem(path):
            raise InputError(
                f"the kit contains the invalid path {path!r}",
                where=Location(kit / KIT),
                fix="create the kit again",
            )


def _merged_files(
    loaded: LoadedPatch, tree: Tree, repository: Repository, good: Tree | None
) -> dict[str, WorktreeFile]:
    """Path -> the sides of the merge, and the merged content with conflict markers."""
    patch = loaded.patch
    inputs = three_way_inputs(patch, tree, repository, good) if patch else None
    if inputs:
        return {item.file.path: _merged_file(item, tree.label, loaded.name) for item in inputs}
    return {
        file.path: _partly_applied(file, tree, loaded.name)
        for file in (patch.files if patch else ())
        if file.hunks
    }


def _merged_file(item: ThreeWayInput, ours: str, theirs: str) -> WorktreeFile:
    merged = item.merge(ours_name=ours, theirs_name=theirs)
    return WorktreeFile(
        base=item.base,
        ours=item.ours.data,
        theirs=merge_lines(item.base, item.base, item.theirs.edits).data,
        merged=merged.data,
        conflicts=bool(merged.conflicts),
    )


def _partly_applied(file: FilePatch, tree: Tree, name: str) -> WorktreeFile:
    """Apply the hunks that match, and put the others between conflict markers. Needs no original file."""
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
        new_text = hunk.post if hunk.post.endswith(b"\n") else hunk.post + b"\n"
        conflict = [
            MARKER[0] + tree.label.encode() + b"\n",
            MARKER[1],
            new_text,
            MARKER[2] + name.encode() + b"\n",
        ]
        data = b"".join([*lines[:at], *conflict, *lines[at:]])
    return WorktreeFile(base=None, ours=before, theirs=None, merged=data, conflicts=True)


def _readme(result: RebasedPatch, breakage: Breakage, commit: str, folder: Path) -> str:
    def items(texts: Iterable[str]) -> list[str]:
        return [f"- {printable(text)}" for text in texts] or ["- none was found"]

    touches = [
        f"`{touch.commit.id[:12]}` {touch.commit.date[:10]} {touch.commit.subject}: {touch.path}, "
        + (f"hunk {touch.hunk}" if touch.hunk else "removed")
        for touch in breakage.touched_by
    ]
    lines = [
        f"# {printable(result.patch)} at {commit[:12]}: {result.verdict.verdict}",
        "",
        *items(result.verdict.reasons),
        "",
        "Upstream commits that changed the patched lines, oldest first (`git show` in `tree` displays them):",
        "",
        *items(touches),
        "",
        f"- `{TREE}`: a git work tree at the new base. `git status` lists the files with conflict markers.",
        f"- `{EXPECTED}`: the patched files at the last commit to which the patch applied, if there is one.",
        f"- `original.patch`, and the three-way merge as `{CANDIDATE}`. If the merge has conflicts, it is in",
        f"  `{CONFLICTS}` instead, which is for reading: git does not accept it as a patch.",
        "",
        f"Resolve the conflicts in `{TREE}`. A commit is not necessary. Then run:",
        "",
        f"    npu-matrix patches rebase --continue {folder}",
        "",
    ]
    return "\n".join(lines)
