"""Patches that another repository has in a folder, at the commit that a cell has of it.

An example is a plugin that patches other packages: which patches a cell has follows from the version of the
plugin. The folder is read from a mirror.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import InputError, Location, Problem
from harness.matrix.model.definitions import Axis, PatchPlace
from harness.matrix.model.environment_facets import UnreadPatches
from harness.patchstack.stacks.stack_import import ImportedStack, import_patches
from harness.sources.git.branch_patches import commit_file_name
from harness.sources.git.git_repository import GitTree
from harness.sources.git.mirrors import COMMIT_REMEDY, find_mirror, mirror_folders
from harness.sources.tree import SYMLINK, path_problem

#: A folder with more than this is no folder of patches; the plugin has 0.2 MB.
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class CommitPatches:
    """The patches of a folder at a commit. unread: why they are not known; then there is no stack."""

    commit: str = ""
    stack: ImportedStack | None = None
    unread: UnreadPatches | None = None


def patches_at(place: PatchPlace, axis: Axis, version: str) -> CommitPatches:
    """The patches of `place` at the commit in `version`, a value of `axis`.

    They are unread if no mirror has the commit. InputError if the folder has no patches at this commit.
    """
    release, _, commit = version.partition("@")
    if not commit:
        return _unread(
            axis, release, commit, f"{axis.name} {release} is not a commit", "name a commit: V@COMMIT"
        )
    mirror = find_mirror(mirror_folders(), commit)
    if mirror is None:
        why = f"no local clone has the commit {commit[:12]} of {axis.repository}"
        return _unread(axis, release, commit, f"{why}, which has patches for this cell", COMMIT_REMEDY)
    tree = mirror.tree(commit)
    with tempfile.TemporaryDirectory(prefix="npu-matrix-patches-") as folder:
        top = Path(folder).resolve()
        _write_folder(tree, place, top)
        try:
            stack = import_patches(top, place.layout)
        except InputError as error:
            first = error.problems[0]
            raise InputError(
                f"{axis.name} {version}: {first.what}", where=place.where, why=first.why, fix=first.fix
            ) from error
        return CommitPatches(commit=tree.commit, stack=_renamed(stack, top, place, tree.commit))


def _unread(axis: Axis, release: str, commit: str, why: str, fix: str) -> CommitPatches:
    unread = UnreadPatches(axis=axis.name, version=release, commit=commit, reason=why, remedy=fix)
    return CommitPatches(commit=commit, unread=unread)


def _write_folder(tree: GitTree, place: PatchPlace, top: Path) -> None:
    """Write the regular files below the folder of `place` to `top`. InputError if they are too many."""
    size = 0
    for path in _paths_below(tree, place.folder):
        if path_problem(path) or tree.mode(path) == SYMLINK:
            continue
        data = tree.read(path)
        size += len(data)
        if size > _MAX_BYTES:
            raise InputError(
                f"the folder {place.folder} has more than {_MAX_BYTES >> 20} MB at {tree.label}",
                where=place.where,
                fix="name the folder with the patches",
            )
        file = top / path.removeprefix(place.folder).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _paths_below(tree: GitTree, folder: str) -> Iterator[str]:
    prefix = f"{folder.strip('/')}/" if folder.strip("./") else ""
    yield from (path for path in tree.paths() if path.startswith(prefix))


def _renamed(stack: ImportedStack, top: Path, place: PatchPlace, commit: str) -> ImportedStack:
    """The stack with files named by commit and path, as `read_patch_content` finds them."""

    def name(file: Path) -> Path:
        path = (Path(place.folder) / file.resolve().relative_to(top)).as_posix()
        return Path(commit_file_name(commit, path))

    def located(problem: Problem) -> Problem:
        if problem.where is None or not Path(problem.where.file).resolve().is_relative_to(top):
            return problem
        return replace(problem, where=Location(name(Path(problem.where.file)), problem.where.line))

    return replace(
        stack,
        folder=name(stack.folder),
        patches=tuple(replace(patch, file=name(patch.file)) for patch in stack.patches),
        problems=tuple(map(located, stack.problems)),
        left_out=tuple(map(located, stack.left_out)),
        summary=name(stack.summary) if stack.summary else None,
    )
