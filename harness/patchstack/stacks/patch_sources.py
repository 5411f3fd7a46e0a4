"""Where the patches of a checkout come from: own stacks, patches that lie elsewhere, the shipped stacks.

For each upstream, in this order: the patches that the repository of an axis has at the commit of the cell,
the stack in `patches/UPSTREAM`, then the other entries of the section `patches` of matrix.yaml. Only where a
checkout has no patches of its own for an upstream, and includes the shipped matrix, what that has is used.
Every patch file that was found is accounted for: cells have it, or `unused` says why not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.digest import digest_bytes
from harness.errors import InputError, Location, Problem
from harness.matrix.model.definitions import Axis, PatchPlace
from harness.matrix.model.environment_facets import UnreadPatches
from harness.patchstack.stacks.commit_patches import patches_at
from harness.patchstack.stacks.patch_stack import (
    PATCH_SUFFIXES,
    SelectedPatch,
    is_stack,
    load_stack,
    patch_files,
    upstreams,
)
from harness.patchstack.stacks.stack_import import ImportedStack, import_patches, is_named
from harness.serialisation import JsonValue
from harness.sources.git.branch_patches import branch_patches, file_name_inside, plain_file_name

PATCHES = "patches"
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, kw_only=True)
class PlacedPatch:
    """A patch that is read where it lies. pin: the commit or version that it was made for, or ""."""

    upstream: str
    pin: str
    place: PatchPlace
    patch: SelectedPatch

    def is_for(self, axis: Axis, version: str) -> bool:
        """Whether cells with this version have the patch."""
        if self.place.versions is not None:
            return bool(self.place.versions.holds({axis.name: axis.parse(version)}))
        if not self.pin:
            return True
        release, _, commit = version.partition("@")
        if _COMMIT.fullmatch(self.pin):
            return bool(commit) and (commit.startswith(self.pin) or self.pin.startswith(commit))
        return not commit and _same_release(self.pin, release, axis.tag)


@dataclass(frozen=True, kw_only=True)
class UnusedPatch:
    """A patch file that no cell has.

    file: relative to the checkout. axis: whose repository has it, or "". is_stated: the reason is in
    matrix.yaml.
    """

    file: str
    reason: str
    where: Location
    axis: str = ""
    is_stated: bool = False

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return f"no cell has the patch {self.file}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class PlacedPatches:
    """The patches of places, those that no cell can have, other problems, and why all of them are unknown."""

    placed: tuple[PlacedPatch, ...]
    left_out: tuple[UnusedPatch, ...]
    problems: tuple[Problem, ...]
    unread: UnreadPatches | None = None


_Found = Iterator[tuple[str, str, SelectedPatch]]


@dataclass(frozen=True, kw_only=True)
class PatchSources:
    """The patches of a checkout.

    root: the checkout. shipped: the folder with the stacks of npu-matrix, None if the matrix does not include
    them. places: the section `patches` of matrix.yaml. axes: all axes by name.
    """

    root: Path
    shipped: Path | None
    places: tuple[PatchPlace, ...]
    axes: Mapping[str, Axis]

    def select(self, upstream: str, versions: Mapping[str, str]) -> tuple[SelectedPatch, ...]:
        """The patches for an upstream in a cell, in the order of application.

        versions: axis -> value of the cell. Patches that are not known are one entry with `unread`.
        """
        version = versions.get(upstream, "")
        if not version:
            return ()
        axis = self.axes.get(upstream)
        own = self._own_stack(upstream)
        placed = [one for one in self.placed if one.upstream == upstream]
        # A fork is its own source, also before its first commit: that must not take patches away.
        is_fork = any(one.branch and one.upstream == upstream and not one.is_included for one in self.places)
        has_own = bool(own or placed or is_fork)
        is_shipped = not has_own and self.shipped is not None
        selected = [*self._of_repositories(axis, versions, own=has_own)] if axis else []
        if is_shipped and self.shipped is not None:
            selected += load_stack(self.shipped / PATCHES, upstream).select(version)
        elif own:
            selected += load_stack(self.root / PATCHES, upstream).select(version)
        selected += [one.patch for one in placed if axis and one.is_for(axis, version)]
        once: dict[str, SelectedPatch] = {}
        for patch in selected:  # Folders of several recipes can have the same patch.
            once.setdefault(patch.digest or patch.id, patch)
        return tuple(once.values())

    def _of_repositories(
        self, upstream: Axis, versions: Mapping[str, str], *, own: bool
    ) -> Iterator[SelectedPatch]:
        """The patches for `upstream` in the repositories of other axes, at the commits of the cell."""
        for place in self._repository_places:
            version = versions.get(place.axis, "")
            if not version or (own and place.is_included):
                continue
            found = self.at_commit(place, version)
            if found.unread:
                yield SelectedPatch.of_unread(found.unread)
            for one in found.placed:
                if one.upstream == upstream.name and one.is_for(upstream, versions[upstream.name]):
                    yield one.patch

    def at_commit(self, place: PatchPlace, version: str) -> PlacedPatches:
        """The patches that the repository of an axis has in a place, with this version of the axis."""
        key = (place, version)
        if key not in self._at_commits:
            self._at_commits[key] = self._read_commit(place, version)
        return self._at_commits[key]

    @functools.cached_property
    def _at_commits(self) -> dict[tuple[PatchPlace, str], PlacedPatches]:
        return {}

    @functools.cached_property
    def _repository_places(self) -> tuple[PatchPlace, ...]:
        return tuple(place for place in self.places if place.axis)

    @property
    def repositories(self) -> tuple[str, ...]:
        """The axes whose repositories have patches: which ones a cell has depends on its values of these."""
        return tuple(dict.fromkeys(place.axis for place in self._repository_places))

    def facet(self, upstream: str, versions: Mapping[str, str]) -> list[dict[str, JsonValue]]:
        """The facet `patches[upstream]`: the selected patches, without their contents."""
        return [patch.facet() for patch in self.select(upstream, versions)]

    @functools.cached_property
    def upstreams(self) -> tuple[str, ...]:
        """The upstreams that this checkout or npu-matrix has patches for, in the order of the axes."""
        own = {name for name in upstreams(self.root / PATCHES) if self._own_stack(name)}
        shipped = set(upstreams(self.shipped / PATCHES)) if self.shipped else set()
        names = own | shipped | {one.upstream for one in self.placed}
        return tuple(name for name in self.axes if name in names)

    @functools.cached_property
    def placed(self) -> tuple[PlacedPatch, ...]:
        """The patches of the section `patches` that belong to an axis."""
        return self._read.placed

    def placed_in(self, cells: Iterable[Mapping[str, str]]) -> tuple[PlacedPatch, ...]:
        """The patches of all places, with those in the repositories of axes at the commits of these cells."""
        return (*self.placed, *(one for found in self._commits_of([*cells]) for one in found.placed))

    def _commits_of(self, cells: Sequence[Mapping[str, str]]) -> Iterator[PlacedPatches]:
        for place in self._repository_places:
            for version in sorted({cell[place.axis] for cell in cells if place.axis in cell}):
                yield self.at_commit(place, version)

    @property
    def files(self) -> tuple[str, ...]:
        """The patch files that lie elsewhere in the checkout, relative to it, with those that no cell has."""
        named = [plain_file_name(one.patch.file) for one in self.placed] + [
            one.file for one in self._read.left_out
        ]
        return tuple(dict.fromkeys(named))

    def unnamed(self, files: Iterable[str]) -> tuple[UnusedPatch, ...]:
        """The patch files among these files of the checkout that no entry and no stack of ours names."""
        known = {*self.files}
        own = tuple(f"{PATCHES}/{name}/" for name in upstreams(self.root / PATCHES) if self._own_stack(name))
        return tuple(
            UnusedPatch(
                file=name,
                reason="no entry of the section `patches` names it",
                where=Location(self.root / name),
            )
            for name in files
            if name.endswith(PATCH_SUFFIXES) and name not in known and not name.startswith(own)
        )

    def unused(
        self, cells: Iterable[Mapping[str, str]], *, in_repositories: bool = True
    ) -> tuple[UnusedPatch, ...]:
        """The patches of the section `patches` that no cell has.

        cells: axis -> value, of each cell. in_repositories: also those in the repositories of axes.
        """
        known = [*cells]
        found = [*self._read.left_out, *self._unused_of(self.placed, known)]
        for place in self._repository_places if in_repositories else ():
            for version in sorted({cell[place.axis] for cell in known if place.axis in cell}):
                patches = self.at_commit(place, version)
                having = [cell for cell in known if cell.get(place.axis) == version]
                found += [*patches.left_out, *self._unused_of(patches.placed, having)]
        return tuple(found)

    def _unused_of(
        self, placed: Iterable[PlacedPatch], cells: Sequence[Mapping[str, str]]
    ) -> Iterator[UnusedPatch]:
        for one in placed:
            known = sorted({cell[one.upstream] for cell in cells if one.upstream in cell})
            if not any(one.is_for(self.axes[one.upstream], version) for version in known):
                file = plain_file_name(one.patch.file)
                where = one.place.where if one.place.axis else Location(self.root / file)
                yield UnusedPatch(file=file, reason=_why_unused(one, known), where=where, axis=one.place.axis)

    @functools.cached_property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the places besides patches that no cell has, for example a stale summary."""
        return self._read.problems

    def _own_stack(self, upstream: str) -> bool:
        """Whether `patches/UPSTREAM` is a stack of this project's format, not a folder of `places`."""
        folder = self.root / PATCHES / upstream
        named = {(self.root / place.folder).resolve() for place in self.places if place.folder}
        return is_stack(folder) and not named & {folder.resolve(), *folder.resolve().parents}

    @functools.cached_property
    def _read(self) -> PlacedPatches:
        placed: list[PlacedPatch] = []
        unused: list[UnusedPatch] = []
        problems: list[Problem] = []
        for place in self.places:
            if place.left_out:
                unused += _stated(self.root, place)
            elif not place.axis:
                reader = _branch if place.branch else _folder
                self._place(reader(self, place, unused, problems), place, placed, unused)
        return PlacedPatches(placed=tuple(placed), left_out=tuple(unused), problems=tuple(problems))

    def _read_commit(self, place: PatchPlace, version: str) -> PlacedPatches:
        placed: list[PlacedPatch] = []
        unused: list[UnusedPatch] = []
        problems: list[Problem] = []
        found = patches_at(place, self.axes[place.axis], version)
        if found.stack is not None:
            entries = _imported(found.stack, found.stack.folder, None, place, unused, problems)
            self._place(entries, place, placed, unused)
        return PlacedPatches(
            placed=tuple(placed), left_out=tuple(unused), problems=tuple(problems), unread=found.unread
        )

    def _place(
        self, entries: _Found, place: PatchPlace, placed: list[PlacedPatch], unused: list[UnusedPatch]
    ) -> None:
        """Sort the patches of a place into those of an axis, and others."""
        for upstream, pin, patch in entries:
            axis = self._axis_of(upstream)
            if not axis:
                reason = (
                    f"matrix.yaml has no axis for {upstream!r}" if upstream else "its upstream is not known"
                )
                unused.append(UnusedPatch(file=patch.file, reason=reason, where=place.where, axis=place.axis))
                continue
            named = replace(
                patch,
                id=f"{axis}/{place.axis}/{patch.id}" if place.axis else f"{axis}/{patch.id}",
                version_range=pin or (str(place.versions) if place.versions else ""),
                series=1 + sum(1 for one in placed if one.upstream == axis),
            )
            placed.append(PlacedPatch(upstream=axis, pin=pin, place=place, patch=named))

    def _axis_of(self, upstream: str) -> str:
        """The axis of an upstream as layouts name it, such as `megatron-core`, or ""."""
        plain = upstream.replace("-", "_").lower()
        if plain in self.axes:
            return plain
        packages = {
            axis.package.replace("-", "_").lower(): name for name, axis in self.axes.items() if axis.package
        }
        return packages.get(plain, "")


def _stated(root: Path, place: PatchPlace) -> Iterator[UnusedPatch]:
    """The patch files that no cell has for the reason that matrix.yaml states."""
    folder = root / place.folder
    for file in patch_files(folder):
        if is_named(file, folder, place.files):
            yield UnusedPatch(
                file=_relative(file, root), reason=place.left_out, where=place.where, is_stated=True
            )


def _folder(
    sources: PatchSources, place: PatchPlace, unused: list[UnusedPatch], problems: list[Problem]
) -> _Found:
    folder = sources.root / place.folder
    if not folder.resolve().is_relative_to(sources.root.resolve()):
        raise InputError("this folder is outside of the repository", where=place.where, fix="remove the link")
    try:
        stack = import_patches(
            folder, place.layout, files=place.files, strip=place.strip, inside=place.inside
        )
    except InputError as error:
        first = error.problems[0]
        raise InputError(
            f"{place.folder}: {first.what}", where=place.where, why=first.why, fix=first.fix
        ) from error
    if stack.refused:
        # Without these, the cells would have other patches than quilt applies.
        raise InputError.of(stack.refused)
    yield from _imported(stack, folder, sources.root, place, unused, problems)


def _imported(
    stack: ImportedStack,
    folder: Path,
    root: Path | None,
    place: PatchPlace,
    unused: list[UnusedPatch],
    problems: list[Problem],
) -> _Found:
    """The patches of a stack. root: the checkout, None for files of another repository."""
    for problem in stack.problems:
        file = Path(problem.where.file) if problem.where else folder
        if problem in stack.left_out:
            reason = f"{problem.what}: {problem.why}" if problem.why else problem.what
            where = Location(file) if root else place.where
            unused.append(
                UnusedPatch(file=_relative(file, root), reason=reason, where=where, axis=place.axis)
            )
        else:
            problems.append(problem)
    for patch in stack.patches:
        pin = patch.pin or _pin_of_folder(patch.file, folder)
        yield (
            patch.upstream or place.upstream,
            pin,
            SelectedPatch(
                id=re.sub(r"\.(patch|diff)$", "", patch.name).removeprefix(f"{patch.upstream}/"),
                version_range=pin,
                file=file_name_inside(_relative(patch.file, root), place.inside),
                digest=digest_bytes(patch.data),
                series=0,
                data=patch.data,
            ),
        )


def _branch(
    sources: PatchSources, place: PatchPlace, unused: list[UnusedPatch], _problems: list[Problem]
) -> _Found:
    try:
        found = branch_patches(sources.root, place.branch, place.base, place.upstream)
    except InputError as error:
        first = error.problems[0]
        raise InputError(first.what, where=place.where, why=first.why, fix=first.fix) from error
    unused += [
        UnusedPatch(
            file=file,
            reason=f"{place.branch} changes it, but it is not in the package folder {place.upstream}/",
            where=place.where,
        )
        for file in found.outside
    ]
    for patch in found.patches:
        digest = digest_bytes(patch.data)
        yield (
            place.upstream,
            "",
            SelectedPatch(
                id=patch.name, version_range="", file=patch.file, digest=digest, series=0, data=patch.data
            ),
        )


def _relative(file: Path, root: Path | None) -> str:
    if root is None:
        return file.as_posix()
    for one, top in ((file, root), (file.resolve(), root.resolve())):
        if one.is_relative_to(top):
            return one.relative_to(top).as_posix()
    return str(file)


def _pin_of_folder(file: Path, top: Path) -> str:
    """The version or commit that a folder above the patch is named after, as in `v0.7.1/0001-fix.patch`."""
    for parent in file.parents:
        if parent in (top, *top.parents):
            return ""
        if names_version(parent.name):
            return parent.name
    return ""


def names_version(folder: str) -> bool:
    """Whether the name of a folder is that of a version, tag or commit."""
    return _version(folder) is not None or bool(_COMMIT.fullmatch(folder))


def _version(text: str) -> Version | None:
    try:
        return Version(text.removeprefix("core_")) if "." in text else None
    except InvalidVersion:
        return None


def _same_release(pin: str, release: str, tag: str) -> bool:
    if tag and tag.replace("{version}", release) == pin:
        return True
    mine, theirs = _version(pin), _version(release)
    return mine is not None and mine == theirs


def _why_unused(one: PlacedPatch, known: list[str]) -> str:
    if not known:
        return f"no cell has a version of {one.upstream}"
    if one.place.versions is not None:
        return f"no cell has {one.place.versions}"
    kind = "commit" if _COMMIT.fullmatch(one.pin) else "version"
    return f"it is for {kind} {one.pin} of {one.upstream}, which no cell has"
