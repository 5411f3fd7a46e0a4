"""Which releases of a package have the files and functions that a traceback names.

A log often shows a stack and no version. A release without a file or function of the stack cannot be the one
that is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.compat.knowledge.surface_pack import ReleaseSurface, SurfacePack
from harness.verdict.triage.stack_trace import Frame

_FUNCTION = re.compile(r"[A-Za-z_]\w*$")
#: (file in the package, function), function "" where a frame is not in a function of the outline.
_Place = tuple[str, str]


def releases_with_stack(pack: SurfacePack, package: str, stack: Iterable[Frame]) -> frozenset[str]:
    """The releases that have all files and functions of the frames in a package.

    Empty if no frame is in the package, or no release has all: then it is a fork or an unreleased commit.
    """
    paths = pack.paths(package)
    places = {place for frame in stack if (place := _place(frame, paths))}
    if not places:
        return frozenset()
    read = {version: surface for version, surface in pack.surfaces(package) if surface is not None}
    found = set(read)
    for file, function in places:
        with_file = {version for version, surface in read.items() if file in surface.names()}
        with_function = {one for one in with_file if function and _defines(read[one], file, function)}
        # A function within another one is in no outline.
        found &= with_function or with_file
    return frozenset(found)


def path_in_package(file: str, paths: frozenset[str]) -> str:
    """A file's path in a package: the longest end of its path that is one of `paths`, or ""."""
    parts = file.replace("\\", "/").split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts) - 1))
    return next((end for end in ends if end in paths), "")


def _place(frame: Frame, paths: frozenset[str]) -> _Place | None:
    file = path_in_package(frame.file, paths)
    return (file, frame.function if _FUNCTION.match(frame.function) else "") if file else None


def _defines(surface: ReleaseSurface, file: str, function: str) -> bool:
    return re.search(rb"\bdef %s\(" % re.escape(function).encode(), surface.read(file)) is not None
