"""Where the patches of a checkout come from: own stacks, patches that lie elsewhere, the shipped stacks.

For each upstream, in this order: the stack in `patches/UPSTREAM`, then the entries of the section `patches`
of matrix.yaml. Only where a checkout has neither, and includes the matrix of npu-matrix, the shipped patches
are used. Every patch file that was found is accounted for: cells have it, or `unused` says why not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.digest import digest_bytes
from harness.errors import InputError, Location, Problem
from harness.matrix.model.definitions import Axis, PatchPlace
from harness.patchstack.stacks.patch_stack import SelectedPatch, load_stack, upstreams
from harness.patchstack.stacks.stack_import import import_patches
from harness.serialisation import JsonValue, json_object
from harness.sources.git.branch_patches import branch_patches

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
    """A patch file that no cell has. file: relative to the checkout."""

    file: str
    reason: str
    where: Location

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return f"no cell has the patch {self.file}: {self.reason}"


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

    def select(self, upstream: str, version: str) -> tuple[SelectedPatch, ...]:
        """The patches for a version of an upstream, in the order of application."""
        own = self._own_stack(upstream)
        placed = [one for one in self.placed if one.upstream == upstream]
        if not own and not placed and self.shipped is not None:
            return load_stack(self.shipped / PATCHES, upstream).select(version)
        selected = list(load_stack(self.root / PATCHES, upstream).select(version)) if own else []
        axis = self.axes.get(upstream)
        for one in placed:
            if axis is not None and one.is_for(axis, version):
                selected.append(one.patch)
        return tuple(selected)

    def facet(self, upstream: str, version: str) -> list[dict[str, JsonValue]]:
        """The facet `patches[upstream]`: the selected patches, without their contents."""
        return [json_object(patch) for patch in self.select(upstream, version)]

    @functools.cached_property
    def upstreams(self) -> tuple[str, ...]:
        """The upstreams that have patches, in the order of the axes."""
        own = {name for name in upstreams(self.root / PATCHES) if self._own_stack(name)}
        shipped = set(upstreams(self.shipped / PATCHES)) if self.shipped else set()
        names = own | shipped | {one.upstream for one in self.placed}
        return tuple(name for name in self.axes if name in names)

    @functools.cached_property
    def placed(self) -> tuple[PlacedPatch, ...]:
        """The patches of the section `patches` that belong to an axis."""
        return self._read[0]

    @property
    def files(self) -> tuple[str, ...]:
        """The patch files that lie elsewhere in the checkout, relative to it, with those that no cell has."""
        named = [one.patch.file for one in self.placed] + [one.file for one in self._read[1]]
        return tuple(dict.fromkeys(named))

    def unused(self, versions: Mapping[str, Iterable[str]]) -> tuple[UnusedPatch, ...]:
        """The patches of the section `patches` that no cell has. versions: axis -> its values in cells."""
        found = list(self._read[1])
        for one in self.placed:
            known = sorted(set(versions.get(one.upstream, ())))
            if not any(one.is_for(self.axes[one.upstream], version) for version in known):
                found.append(
                    UnusedPatch(
                        file=one.patch.file,
                        reason=_why_unused(one, known),
                        where=Location(self.root / one.patch.file),
                    )
                )
        return tuple(found)

    @functools.cached_property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the places besides patches that no cell has, for example a stale summary."""
        return self._read[2]

    def _own_stack(self, upstream: str) -> bool:
        """Whether `patches/UPSTREAM` is a stack of this project's format, not a folder of `places`."""
        folder = self.root / PATCHES / upstream
        named = {(self.root / place.folder).resolve() for place in self.places if place.folder}
        return folder.is_dir() and not named & {folder.resolve(), *folder.resolve().parents}

    @functools.cached_property
    def _read(self) -> tuple[tuple[PlacedPatch, ...], tuple[UnusedPatch, ...], tuple[Problem, ...]]:
        placed: list[PlacedPatch] = []
        unused: list[UnusedPatch] = []
        problems: list[Problem] = []
        for place in self.places:
            reader = _branch if place.branch else _folder
            for upstream, pin, patch in reader(self, place, unused, problems):
                axis = self._axis_of(upstream)
                if axis:
                    known = sum(1 for one in placed if one.upstream == axis)
                    named = SelectedPatch(
                        id=f"{axis}/{patch.id}",
                        version_range=pin or (str(place.versions) if place.versions else ""),
                        file=patch.file,
                        digest=patch.digest,
                        series=known + 1,
                        data=patch.data,
                    )
                    placed.append(PlacedPatch(upstream=axis, pin=pin, place=place, patch=named))
                    continue
                reason = (
                    f"matrix.yaml has no axis for {upstream!r}" if upstream else "its upstream is not known"
                )
                unused.append(UnusedPatch(file=patch.file, reason=reason, where=place.where))
        return tuple(placed), tuple(unused), tuple(problems)

    def _axis_of(self, upstream: str) -> str:
        """The axis of an upstream as layouts name it, such as `megatron-core`, or ""."""
        plain = upstream.replace("-", "_").lower()
        if plain in self.axes:
            return plain
        packages = {
            axis.package.replace("-", "_").lower(): name for name, axis in self.axes.items() if axis.package
        }
        return packages.get(plain, "")


_Found = Iterator[tuple[str, str, SelectedPatch]]


def _folder(
    sources: PatchSources, place: PatchPlace, unused: list[UnusedPatch], problems: list[Problem]
) -> _Found:
    folder = sources.root / place.folder
    if not folder.resolve().is_relative_to(sources.root.resolve()):
        raise InputError("this folder is outside of the repository", where=place.where, fix="remove the link")
    try:
        stack = import_patches(folder, place.layout)
    except InputError as error:
        first = error.problems[0]
        raise InputError(
            f"{place.folder}: {first.what}", where=place.where, why=first.why, fix=first.fix
        ) from error
    for problem in stack.problems:
        file = Path(problem.where.file) if problem.where else folder
        if problem in stack.left_out:
            reason = f"{problem.what}: {problem.why}" if problem.why else problem.what
            unused.append(
                UnusedPatch(file=_relative(file, sources.root), reason=reason, where=Location(file))
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
                file=_relative(patch.file, sources.root),
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


def _relative(file: Path, root: Path) -> str:
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
