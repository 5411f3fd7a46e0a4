"""Which patches of a folder are meant: of this project's format by upstream and version, of any other all."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location
from harness.patchstack.apply.classify import LoadedPatch, read_patch
from harness.patchstack.format.patch_header import FILE_NAME
from harness.patchstack.stacks.patch_stack import SERIES, PatchStack, load_stack, upstreams
from harness.sources.tree import Tree

#: The upstream that is meant where a folder has the stacks of several and nothing else says which.
DEFAULT_UPSTREAM = "verl"
_SUFFIXES = (".patch", ".diff")


@dataclass(frozen=True, kw_only=True)
class VariantGroup:
    """A logical patch: its name, and of each body its place among the patches and the versions it is for."""

    name: str
    variants: tuple[tuple[int, str], ...]


def load_own_stack(folder: Path, upstream: str = "") -> PatchStack | None:
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


def choose_upstream(folder: Path, upstream: str, tree: Tree | None = None) -> str:
    """The upstream whose stack is meant: the named one, else that whose package the tree has, else verl."""
    stacks = stacks_in(folder) if not upstream and folder.is_dir() else []
    if len(stacks) < 2:
        return upstream
    inside = [name for name in stacks if tree is not None and tree.is_folder(name)]
    if len(inside) == 1:
        return inside[0]
    return DEFAULT_UPSTREAM if DEFAULT_UPSTREAM in stacks else ""


def all_variants(
    folder: Path, upstream: str = ""
) -> tuple[tuple[LoadedPatch, ...], tuple[VariantGroup, ...]]:
    """Every body of a stack, and which of them make one patch; of another format all patches and nothing."""
    stack = load_own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder), ()
    variants: list[LoadedPatch] = []
    logical = []
    for patch in stack.patches:
        own = tuple((len(variants) + at, variant.versions) for at, variant in enumerate(patch.variants))
        logical.append(VariantGroup(name=f"{stack.upstream}/{patch.id}", variants=own))
        variants += [read_patch(variant.file.name, variant.file.read_bytes()) for variant in patch.variants]
    return tuple(variants), tuple(logical)


def variants_for(folder: Path, version: str, upstream: str = "") -> tuple[LoadedPatch, ...]:
    """The patches for one version, in order; of a folder of another format all there are.

    InputError when the stack chooses by version and `version` is "".
    """
    stack = load_own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder)
    if not version:
        raise InputError(
            "nothing says which version this tree is, so no bodies can be chosen for it",
            where=Location(stack.folder),
            fix="say it with --version, e.g. --version 0.9.1",
        )
    return tuple(read_patch(patch.id, patch.data) for patch in stack.select(version))


def newest_variants(folder: Path, upstream: str = "") -> tuple[LoadedPatch, ...]:
    """The last body of each patch, which is for its newest versions; of another format all there are."""
    stack = load_own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return collect_patches(folder)
    variants = [(patch, patch.variants[-1]) for patch in stack.patches if patch.variants]
    return tuple(
        read_patch(f"{stack.upstream}/{patch.id}", variant.file.read_bytes()) for patch, variant in variants
    )


@dataclass(frozen=True, kw_only=True)
class CurrentVariants:
    """Bodies that somebody still relies on; of patches that have ended, id -> the versions they were for."""

    variants: tuple[LoadedPatch, ...]
    ended: Mapping[str, str]


def current_variants(folder: Path, versions: Sequence[str], upstream: str = "") -> CurrentVariants:
    """The body of each patch for the first of `versions` it has one for; of another format all there are.

    Give the version of a development head, then the newest release: what is for neither has ended.
    """
    stack = load_own_stack(folder, upstream) if folder.is_dir() else None
    if stack is None:
        return CurrentVariants(variants=collect_patches(folder), ended={})
    found, ended = [], {}
    for patch in stack.patches:
        name = f"{stack.upstream}/{patch.id}"
        variant = next(filter(None, map(patch.variant_for, versions)), None)
        if variant is None:
            ended[name] = patch.applies_to
        else:
            found.append(read_patch(name, variant.file.read_bytes()))
    return CurrentVariants(variants=tuple(found), ended=ended)


def select_by_name(patches: Sequence[LoadedPatch], names: Sequence[str]) -> tuple[LoadedPatch, ...]:
    """The patches with these names (or globs); all when there are none. InputError when one names nothing."""
    known = [patch.name for patch in patches]
    for name in names:
        if not any(_is_named(patch, name) for patch in patches):
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise InputError(
                f"no patch is called {name!r}", fix=f"one of: {', '.join(near or known) or 'there are none'}"
            )
    return tuple(patch for patch in patches if not names or any(_is_named(patch, name) for name in names))


def _is_named(patch: LoadedPatch, name: str) -> bool:
    return fnmatch.fnmatchcase(patch.name, name) or patch.name.endswith(f"/{name}")


def collect_patches(folder: Path) -> tuple[LoadedPatch, ...]:
    """Every patch file below `folder` (or the one file it is), named by its path below it, in order of names.

    InputError when there is none, or one cannot be read.
    """
    if folder.is_file():
        return (read_patch(folder.name, _read(folder)),)
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in _SUFFIXES and file.is_file() and not file.is_symlink()
    )
    if not files:
        raise InputError(
            "there are no patches here",
            where=Location(folder),
            fix=f"give a folder with {' or '.join('*' + suffix for suffix in _SUFFIXES)} files in it",
        )
    return tuple(read_patch(file.relative_to(folder).as_posix(), _read(file)) for file in files)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError("this patch cannot be read", where=Location(file), why=str(error)) from error
