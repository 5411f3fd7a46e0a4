"""What commands work on: patches chosen from a folder, and the upstream tree they are held against."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, Location
from harness.patchstack.apply.classify import Readable, read_patch
from harness.patchstack.format.patch_header import FILE_NAME
from harness.patchstack.stacks.patch_selection import collect_patches
from harness.patchstack.stacks.patch_stack import SERIES, PatchStack, load_stack, upstreams

if TYPE_CHECKING:
    from harness.patchstack.history.survival import Bodies
    from harness.sources.git.git_repository import Repository
    from harness.sources.packages.pip_download import RunCommand
    from harness.sources.tree import HasBlobs, Tree

#: Whose stack is meant where several are and nothing says which.
DEFAULT_UPSTREAM = "verl"
_VERSION_FILES = ("{package}/version/version", "PKG-INFO")


@dataclass(frozen=True, kw_only=True)
class Target:
    """An upstream tree. version: which one it is, "" when neither it nor the user says."""

    tree: Tree
    version: str
    blobs: HasBlobs | None = None


def own_stack(folder: Path, upstream: str = "") -> PatchStack | None:
    """The stack in a folder of this project's format, `patches` or `patches/<upstream>`; else None.

    InputError when it is damaged, or has several upstreams and none is named.
    """
    if (folder / SERIES).is_file() and any(folder.glob(f"*/{FILE_NAME}")):
        return load_stack(folder.parent, folder.name)
    stacks = stacks_in(folder)
    if not stacks:
        return None
    if not upstream and len(stacks) > 1:
        raise InputError(
            "there are stacks of several upstreams here",
            where=Location(folder),
            fix=f"name one with --upstream: {', '.join(stacks)}",
        )
    wanted = upstream or stacks[0]
    if wanted not in stacks:
        raise InputError(
            f"there is no stack of {wanted!r} here", where=Location(folder), fix=f"one of {', '.join(stacks)}"
        )
    return load_stack(folder, wanted)


def stacks_in(folder: Path) -> list[str]:
    """The upstreams with a stack of this project's format below a folder."""
    names = [name for name in upstreams(folder) if (folder / name / SERIES).is_file()]
    return [name for name in names if any((folder / name).glob(f"*/{FILE_NAME}"))]


def whose(folder: Path, upstream: str, tree: Tree | None = None) -> str:
    """The upstream whose stack is meant: the named one, else that whose package the tree has, else verl."""
    stacks = stacks_in(folder) if not upstream and folder.is_dir() else []
    if len(stacks) < 2:
        return upstream
    inside = [name for name in stacks if tree is not None and tree.is_folder(name)]
    if len(inside) == 1:
        return inside[0]
    return DEFAULT_UPSTREAM if DEFAULT_UPSTREAM in stacks else ""


def logical_bodies(folder: Path, upstream: str = "") -> tuple[tuple[Readable, ...], tuple[Bodies, ...]]:
    """Every body of a stack, and which of them make one patch; of another format all patches and nothing."""
    from harness.patchstack.history.survival import Bodies

    stack = own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder), ()
    bodies: list[Readable] = []
    logical = []
    for patch in stack.patches:
        own = tuple((len(bodies) + at, body.versions) for at, body in enumerate(patch.bodies))
        logical.append(Bodies(name=f"{stack.upstream}/{patch.id}", bodies=own))
        bodies += [read_patch(body.file.name, body.file.read_bytes()) for body in patch.bodies]
    return tuple(bodies), tuple(logical)


def bodies_for(folder: Path, version: str, upstream: str = "") -> tuple[Readable, ...]:
    """The patches for one version, in order; of a folder of another format all there are.

    InputError when the stack chooses by version and `version` is "".
    """
    stack = own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder)
    if not version:
        raise InputError(
            "nothing says which version this tree is, so no bodies can be chosen for it",
            where=Location(stack.folder),
            fix="say it with --version, e.g. --version 0.9.1",
        )
    return tuple(read_patch(patch.id, patch.data) for patch in stack.select(version))


def newest_bodies(folder: Path, upstream: str = "") -> tuple[Readable, ...]:
    """The last body of each patch, which is for its newest versions; of another format all there are."""
    stack = own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder)
    bodies = [(patch, patch.bodies[-1]) for patch in stack.patches if patch.bodies]
    return tuple(read_patch(f"{stack.upstream}/{patch.id}", body.file.read_bytes()) for patch, body in bodies)


@dataclass(frozen=True, kw_only=True)
class Current:
    """Bodies that somebody still relies on; of patches that have ended, id -> the versions they were for."""

    bodies: tuple[Readable, ...]
    ended: Mapping[str, str]


def current_bodies(folder: Path, versions: Sequence[str], upstream: str = "") -> Current:
    """The body of each patch for the first of `versions` it has one for; of another format all there are.

    Give the version of a development head, then the newest release: what is for neither has ended.
    """
    stack = own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return Current(bodies=collect_patches(folder), ended={})
    found, ended = [], {}
    for patch in stack.patches:
        name = f"{stack.upstream}/{patch.id}"
        body = next(filter(None, map(patch.body_for, versions)), None)
        if body is None:
            ended[name] = patch.applies_to
        else:
            found.append(read_patch(name, body.file.read_bytes()))
    return Current(bodies=tuple(found), ended=ended)


def named(patches: Sequence[Readable], names: Sequence[str]) -> tuple[Readable, ...]:
    """The patches with these names (or globs); all when there are none. InputError when one names nothing."""
    import difflib

    known = [patch.name for patch in patches]
    for name in names:
        if not any(_is_named(patch, name) for patch in patches):
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise InputError(
                f"no patch is called {name!r}", fix=f"one of: {', '.join(near or known) or 'there are none'}"
            )
    return tuple(patch for patch in patches if not names or any(_is_named(patch, name) for name in names))


def _is_named(patch: Readable, name: str) -> bool:
    return fnmatch.fnmatchcase(patch.name, name) or patch.name.endswith(f"/{name}")


def folder_target(path: Path, package: str, version: str = "") -> Target:
    """A working folder, an installed package's parent folder, a wheel or an sdist."""
    tree = open_folder(path)
    return Target(tree=tree, version=version or version_in(tree, package))


def open_folder(path: Path) -> Tree:
    """The tree of a folder, a wheel or an sdist; InputError when there is none."""
    from harness.sources.packages.archive import open_archive
    from harness.sources.tree import DirectoryTree

    if not path.exists():
        raise InputError(
            "there is no such tree", where=Location(path), fix="give a folder, a wheel or an sdist"
        )
    return DirectoryTree(root=path) if path.is_dir() else open_archive(path)


def commit_target(repository: Repository, reference: str, package: str, version: str = "") -> Target:
    """One commit. Its version is what its own tree says, with the commit behind it."""
    tree = repository.tree(reference)
    found = version or version_in(tree, package)
    return Target(
        tree=tree,
        blobs=repository,
        version=f"{found}@{tree.commit}" if found and "@" not in found else found,
    )


def version_target(
    package: str, version: str, *, cache: Path, command: RunCommand, mirrors: Path | None
) -> Target:
    """The release of this version, or the commit behind its `@`. InputError when there is none at hand."""
    release, _at, commit = version.partition("@")
    source = {"package": package, "kind": "commit" if commit else "release", "version": release}
    tree, blobs, absent = upstream_tree(
        {**source, "commit": commit}, cache=cache, command=command, mirrors=mirrors
    )
    if tree is None:
        raise InputError(absent, fix="give a repository that has it: --repo PATH --ref REF")
    return Target(tree=tree, blobs=blobs, version=version)


def upstream_tree(
    source: Mapping[str, Any], *, cache: Path, command: RunCommand, mirrors: Path | None
) -> tuple[Tree | None, HasBlobs | None, str]:
    """The tree a `verl_tree` facet names and its old contents, or why there is none at hand."""
    if source["kind"] == "release":
        from harness.sources.packages.archive import open_archive
        from harness.sources.packages.pip_download import ReleaseNotFoundError, fetch_release

        try:
            wheel = fetch_release(source["package"], source["version"], cache=cache, command=command)
        except ReleaseNotFoundError as error:
            return None, None, error.problems[0].what
        return open_archive(wheel), None, ""
    from harness.sources.git.git_repository import find_mirror

    commit = source["commit"]
    repository = find_mirror(mirrors, commit) if mirrors else None
    if repository is None:
        return None, None, f"the upstream tree of commit {commit[:12]} is not at hand"
    tree = repository.tree(commit)
    return tree, tree, ""


def version_in(tree: Tree, package: str) -> str:
    """The version a tree says it is, or ""."""
    name = package.replace("-", "_")
    wheel = re.compile(rf"{re.escape(name)}-[^/]+\.dist-info/METADATA")
    metadata = sorted(path for path in tree.paths() if wheel.fullmatch(path))
    for path in [*(pattern.format(package=name) for pattern in _VERSION_FILES), *metadata]:
        if tree.mode(path) is None:
            continue
        text = tree.read(path).decode("utf-8", "replace")
        if path.endswith(("PKG-INFO", "METADATA")):
            text = next((line[8:] for line in text.splitlines() if line.startswith("Version:")), "")
        if text.strip():
            return text.strip().split()[0]
    return ""
