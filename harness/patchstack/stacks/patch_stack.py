"""Patch stacks on disk: a series file, and a folder per patch with a variant per version range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.digest import digest_bytes
from harness.errors import InputError, Location, Problem
from harness.matrix.model.environment_facets import UNREAD, UnreadPatches
from harness.measurements import read_shape
from harness.patchstack.format.patch_header import FILE_NAME, ID, PatchHeader, in_range, parse_header
from harness.patchstack.stacks.patch_origin import OriginFinding, OriginState, origin_of, origins
from harness.serialisation import JsonValue, json_form, json_object
from harness.sources.git.branch_patches import read_patch_content

SERIES = "series"
PATCH_SUFFIXES = (".patch", ".diff")


@json_form(leave_out=("data", "unread"))
@dataclass(frozen=True, kw_only=True)
class SelectedPatch:
    """The variant of a patch for one version.

    file: relative to the checkout, or to the folder with what npu-matrix ships; of a branch, the two commits;
    of another repository, its commit and the path.
    series: the position of the patch in its stack, from 1.
    stale_origin: the file that the patch was imported from, with its digest, if it has changed since then;
    otherwise "".
    unread: this entry stands for patches that are not known.
    """

    id: str
    version_range: str
    file: str
    digest: str
    series: int
    stale_origin: str = ""
    data: bytes = b""
    unread: UnreadPatches | None = None

    @classmethod
    def from_facet(cls, facet: Mapping[str, Any], root: Path) -> SelectedPatch:
        """The patch that a facet names, read again; InputError when it changed after planning."""
        if UNREAD in facet:
            return cls.of_unread(read_shape(UnreadPatches, facet[UNREAD]))
        data = read_patch_content(facet["file"], facet["digest"], root)
        if data is None:
            raise InputError(
                "this patch changed after the plan was made",
                where=Location(root / facet["file"]),
                fix="run again",
            )
        return cls(
            id=facet["id"],
            version_range=facet["version_range"],
            file=facet["file"],
            digest=facet["digest"],
            series=facet["series"],
            stale_origin=facet.get("stale_origin", ""),
            data=data,
        )

    @classmethod
    def of_unread(cls, unread: UnreadPatches) -> SelectedPatch:
        """The entry that stands for patches that are not known."""
        return cls(id=unread.axis, version_range="", file="", digest="", series=0, unread=unread)

    def facet(self) -> dict[str, JsonValue]:
        """The patch in a facet, without its content."""
        return {**json_object(self), **({UNREAD: json_object(self.unread)} if self.unread else {})}


@dataclass(frozen=True, kw_only=True)
class PatchStack:
    """The patches of one upstream, in the order of application."""

    upstream: str
    folder: Path
    patches: tuple[PatchHeader, ...]

    def select(self, version: str) -> tuple[SelectedPatch, ...]:
        """The variants for `version`, in order; patches that are not for it are left out.

        InputError if a patch is for it, according to its header, and has no variant for it.
        """
        root = self.folder.parent.parent
        selected = []
        for number, patch in enumerate(self.patches, start=1):
            variant = patch.variant_for(version)
            if variant is None:
                if in_range(patch.applies_to, version):
                    raise InputError.of([no_variant(patch, version)])
                continue
            data = read_patch_file(variant.file)
            origin = origin_of(patch, variant, root)
            stale = origin and origin.state is OriginState.CHANGED
            selected.append(
                SelectedPatch(
                    id=f"{self.upstream}/{patch.id}",
                    version_range=variant.versions,
                    file=variant.file.relative_to(root).as_posix(),
                    digest=digest_bytes(data),
                    series=number,
                    stale_origin=f"{origin.file} sha256:{origin.digest}" if origin and stale else "",
                    data=data,
                )
            )
        return tuple(selected)


def load_stack(patches: Path, upstream: str) -> PatchStack:
    """The stack of one upstream in the folder `patches`; empty if there is none.

    InputError with every problem, each with file and line.
    """
    stack, problems = read_stack(patches, upstream)
    if problems:
        raise InputError.of(problems)
    return stack


def no_variant(patch: PatchHeader, version: str) -> Problem:
    """The error for a patch whose header says that it is for a version, without a variant for it."""
    return Problem(
        f"{patch.id} applies to {version}, but has no variant for it",
        Location(patch.file),
        why=f"Applies-To is {patch.applies_to}; without a variant, cells with {version} would not have it",
        fix="widen the range of a variant, or narrow Applies-To",
    )


def imported_origins(patches: Path) -> tuple[OriginFinding, ...]:
    """The origins of the imported patches of all upstreams. Patches with a damaged header are left out."""
    stacks = [read_stack(patches, upstream)[0] for upstream in upstreams(patches)]
    return tuple(found for stack in stacks for found in origins(stack.patches, patches.parent))


def upstreams(patches: Path) -> tuple[str, ...]:
    """The upstreams that have a stack in `patches`."""
    if not patches.is_dir():
        return ()
    return tuple(
        sorted(
            folder.name
            for folder in patches.iterdir()
            if not folder.name.startswith(".") and is_stack(folder)
        )
    )


def is_stack(folder: Path) -> bool:
    """Whether a folder is a stack of this project's format, not a folder of patches in another layout.

    Its patches are folders with a header, which the series names.
    """
    if any(folder.glob(f"*/{FILE_NAME}")):
        return True
    return (folder / SERIES).is_file() and not any(file.suffix in PATCH_SUFFIXES for file in folder.iterdir())


def read_patch_file(file: Path) -> bytes:
    """The content of a patch file; InputError if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError("this patch cannot be read", where=Location(file), why=str(error)) from error


def patch_files(folder: Path) -> list[Path]:
    """Every patch file below `folder`, sorted; symbolic links are skipped."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in PATCH_SUFFIXES and file.is_file() and not file.is_symlink()
    )


def read_stack(patches: Path, upstream: str) -> tuple[PatchStack, list[Problem]]:
    """The stack of one upstream without damaged patches, and the problems of its series and headers."""
    folder = patches / upstream
    series = folder / SERIES
    empty = PatchStack(upstream=upstream, folder=folder, patches=())
    if not folder.is_dir():
        return empty, []
    try:
        if series.is_fifo():
            raise OSError("it is a pipe, not a file")
        lines = series.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return empty, [
            Problem(
                "the series file of this stack cannot be read",
                Location(series),
                why=str(error),
                fix="write a file with one patch id per line",
            )
        ]
    problems: list[Problem] = []
    headers = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        name = line.split("#")[0].strip()
        if not name:
            continue
        where = Location(series, number)
        if not ID.fullmatch(name):
            problems.append(
                Problem(
                    f"{name!r} is not a patch id",
                    where,
                    fix="use lower-case letters, digits, `.`, `_` and `-`",
                )
            )
        elif name in seen:
            problems.append(Problem(f"{name} occurs twice", where, fix="keep one of them"))
        elif not (folder / name / FILE_NAME).is_file():
            problems.append(
                Problem(f"there is no {name}/{FILE_NAME}", where, fix="add the file, or remove this line")
            )
        else:
            header, found = parse_header(folder / name / FILE_NAME)
            problems += found
            headers += [header] if header else []
        seen.add(name)
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name not in seen:
            problems.append(
                Problem(
                    f"{child.name} is not in the series", Location(series), fix="add it, or remove the folder"
                )
            )
    problems += [_unused(file) for file in _unused_files(folder, headers)]
    return PatchStack(upstream=upstream, folder=folder, patches=tuple(headers)), problems


def _unused_files(folder: Path, headers: Sequence[PatchHeader]) -> list[Path]:
    """The patch files of a stack that no header names."""
    named = {variant.file for header in headers for variant in header.variants}
    places = [folder, *(header.file.parent for header in headers)]
    return [
        file
        for place in places
        for file in sorted(place.iterdir())
        if file.suffix.lower() in PATCH_SUFFIXES and not file.is_dir() and file not in named
    ]


def _unused(file: Path) -> Problem:
    return Problem(
        "no cell has this patch",
        Location(file),
        why=f"no Body line of a {FILE_NAME} file names it",
        fix="name it in the header of its patch, or remove it",
    )
