"""Select patches from a folder: by upstream and version in this project's format, otherwise all patches."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location
from harness.patchstack.apply.classify import LoadedPatch, read_patch
from harness.patchstack.format.patch_header import FILE_NAME
from harness.patchstack.stacks.patch_stack import (
    PATCH_SUFFIXES,
    SERIES,
    PatchStack,
    load_stack,
    patch_files,
    read_patch_file,
    upstreams,
)
from harness.sources.git.branch_patches import complete_last_line
from harness.sources.tree import Tree

#: The upstream to use if a folder has stacks of several upstreams and none is named.
DEFAULT_UPSTREAM = "verl"


@dataclass(frozen=True, kw_only=True)
class VariantGroup:
    """A patch and its variants. variants: (index into a list of patches, versions of the variant)."""

    name: str
    variants: tuple[tuple[int, str], ...]


def load_own_stack(folder: Path, upstream: str = "") -> PatchStack | None:
    """The stack in a folder of this project's format (`patches` or `patches/<upstream>`), otherwise None.

    InputError if it is damaged, or the folder has several upstreams and none is named.
    """
    if (folder / SERIES).is_file() and any(folder.glob(f"*/{FILE_NAME}")):
        return load_stack(folder.parent, folder.name)
    stacks = stacks_in(folder)
    if not stacks:
        return None
    if not upstream and len(stacks) > 1:
        raise InputError(
            "this folder has stacks of several upstreams",
            where=Location(folder),
            fix=f"name one with --upstream: {', '.join(stacks)}",
        )
    name = upstream or stacks[0]
    if name not in stacks:
        raise InputError(
            f"this folder has no stack of {name!r}", where=Location(folder), fix=f"one of {', '.join(stacks)}"
        )
    return load_stack(folder, name)


def stacks_in(folder: Path) -> list[str]:
    """The upstreams with a stack of this project's format below a folder."""
    names = [name for name in upstreams(folder) if (folder / name / SERIES).is_file()]
    return [name for name in names if any((folder / name).glob(f"*/{FILE_NAME}"))]


def choose_upstream(folder: Path, upstream: str, tree: Tree | None = None) -> str:
    """The upstream whose stack to use: `upstream`, else the one whose package is in `tree`, else verl."""
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
    """Every variant of a stack, and the groups of variants of one patch. Other formats have no groups."""
    stack = load_own_stack(folder, upstream)
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
    """The patches for one version, in order. In other formats: all patches.

    InputError if the stack selects by version and `version` is "".
    """
    stack = load_own_stack(folder, upstream)
    if stack is None:
        return collect_patches(folder)
    if not version:
        raise InputError(
            "the version of this tree is unknown, so no patch variants can be selected for it",
            where=Location(stack.folder),
            fix="name the version, e.g. --version 0.9.1",
        )
    return tuple(read_patch(patch.id, patch.data) for patch in stack.select(version))


def newest_variants(folder: Path, upstream: str = "") -> tuple[LoadedPatch, ...]:
    """The last variant of each patch, which is for the newest versions. In other formats: all patches."""
    stack = load_own_stack(folder, upstream)
    if stack is None:
        return collect_patches(folder)
    variants = [(patch, patch.variants[-1]) for patch in stack.patches if patch.variants]
    return tuple(
        read_patch(f"{stack.upstream}/{patch.id}", variant.file.read_bytes()) for patch, variant in variants
    )


@dataclass(frozen=True, kw_only=True)
class CurrentVariants:
    """Variants for current versions. ended: id of each patch for older versions -> these versions."""

    variants: tuple[LoadedPatch, ...]
    ended: Mapping[str, str]


def current_variants(folder: Path, versions: Sequence[str], upstream: str = "") -> CurrentVariants:
    """For each patch, the variant for the first of `versions` for which it has a variant.

    versions: the version of the development head, then the newest release. A patch that is for neither has
    ended. In other formats all patches are returned.
    """
    stack = load_own_stack(folder, upstream)
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
    """The patches with these names or globs; without names all. InputError if a name matches no patch."""
    known = [patch.name for patch in patches]
    for name in names:
        if not any(_is_named(patch, name) for patch in patches):
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            raise InputError(
                f"no patch has the name {name!r}",
                fix=f"one of: {', '.join(near or known) or 'there are none'}",
            )
    return tuple(patch for patch in patches if not names or any(_is_named(patch, name) for name in names))


def _is_named(patch: LoadedPatch, name: str) -> bool:
    return fnmatch.fnmatchcase(patch.name, name) or patch.name.endswith(f"/{name}")


def collect_patches(folder: Path) -> tuple[LoadedPatch, ...]:
    """Every patch file below `folder`, or the file itself, named by its relative path, sorted by name.

    A last line without a newline is read as GNU patch reads it.

    InputError if there is none, or one cannot be read.
    """
    if folder.is_file():
        return (read_patch(folder.name, complete_last_line(read_patch_file(folder))),)
    files = patch_files(folder)
    if not files:
        raise InputError(
            "this folder has no patches",
            where=Location(folder),
            fix=f"give a folder with {' or '.join('*' + suffix for suffix in PATCH_SUFFIXES)} files",
        )
    return tuple(
        read_patch(file.relative_to(folder).as_posix(), complete_last_line(read_patch_file(file)))
        for file in files
    )
