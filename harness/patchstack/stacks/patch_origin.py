"""Whether the file that a patch variant was imported from still has the content that was imported."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.digest import digest_bytes
from harness.errors import Location, Problem
from harness.patchstack.format.patch_header import PatchHeader, PatchVariant


class OriginState(str, enum.Enum):
    """`MISSING`: the file is not here, for example because it is in another repository."""

    SAME = "same"
    CHANGED = "changed"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class OriginFinding:
    """The origin of a variant. file: relative to the checkout. digest: of its content now, "" if missing."""

    patch: PatchHeader
    variant: PatchVariant
    file: str
    state: OriginState
    digest: str = ""

    @property
    def problem(self) -> Problem:
        """The error for an import that is not up to date."""
        return Problem(
            f"{self.patch.id} was imported from {self.file}, which "
            f"{'is missing' if self.state is OriginState.MISSING else 'has changed since then'}",
            Location(self.patch.file, self.variant.origin.line if self.variant.origin else 0),
            why="the imported copy is what cells use, so the change of its origin has no effect",
            fix="import it again, or correct the Origin line if the copy is right",
        )


def origin_path(file: Path, root: Path) -> str:
    """The path of an origin as headers record it: relative to the checkout, with `..` if it is outside."""
    return Path(os.path.relpath(os.path.realpath(file), os.path.realpath(root))).as_posix()


def origin_of(patch: PatchHeader, variant: PatchVariant, root: Path) -> OriginFinding | None:
    """The state of the origin of a variant; None if it was not imported."""
    if variant.origin is None:
        return None
    file = root / variant.origin.path
    try:
        digest = digest_bytes(file.read_bytes()) if file.is_file() else ""
    except OSError:
        digest = ""
    same = OriginState.SAME if digest == variant.origin.digest else OriginState.CHANGED
    return OriginFinding(
        patch=patch,
        variant=variant,
        file=variant.origin.path,
        state=same if digest else OriginState.MISSING,
        digest=digest,
    )


def origins(patches: tuple[PatchHeader, ...], root: Path) -> Iterator[OriginFinding]:
    """The states of the origins of all variants that were imported."""
    for patch in patches:
        for variant in patch.variants:
            found = origin_of(patch, variant, root)
            if found is not None:
                yield found
