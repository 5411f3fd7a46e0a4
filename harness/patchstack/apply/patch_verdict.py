"""What can be said of one patch and one tree."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.sources.tree import TreeFile


class PatchVerdict(enum.StrEnum):
    """Verdict on a (patch, tree) pair. The order is the legend of machine-loaded output: only append."""

    CLEAN = "clean"
    OFFSET = "offset"
    MERGED = "merged"
    ALREADY_UPSTREAM = "already-upstream"
    LINE_ENDINGS = "line-endings"
    MISPLACED = "misplaced"
    CONFLICT = "conflict"
    MISSING_TARGET = "missing-target"
    CORRUPT = "corrupt"
    UNSAFE = "unsafe"

    @property
    def applies(self) -> bool:
        """Whether the patch goes in as it is."""
        return self in {PatchVerdict.CLEAN, PatchVerdict.OFFSET}

    @property
    def accepted_by_git(self) -> bool:
        """Whether strict `git apply --check` accepts the pair: it cannot see a misplaced hunk."""
        return self in {PatchVerdict.CLEAN, PatchVerdict.OFFSET, PatchVerdict.MISPLACED}


#: From the verdict that asks for the least to the one that asks for the most.
SEVERITY = {
    verdict: number
    for number, verdict in enumerate(
        (
            PatchVerdict.CLEAN,
            PatchVerdict.OFFSET,
            PatchVerdict.ALREADY_UPSTREAM,
            PatchVerdict.MERGED,
            PatchVerdict.LINE_ENDINGS,
            PatchVerdict.MISSING_TARGET,
            PatchVerdict.CONFLICT,
            PatchVerdict.MISPLACED,
            PatchVerdict.CORRUPT,
            PatchVerdict.UNSAFE,
        )
    )
}
MEANING = {
    PatchVerdict.CLEAN: "applies exactly where it says",
    PatchVerdict.OFFSET: "applies, with lines shifted",
    PatchVerdict.MERGED: "does not apply as it is; a three-way merge has no conflict",
    PatchVerdict.ALREADY_UPSTREAM: "the tree already has this change",
    PatchVerdict.LINE_ENDINGS: "applies once its line endings are those of the file",
    PatchVerdict.MISPLACED: "applies, but into another function than it was written for",
    PatchVerdict.CONFLICT: "does not apply: upstream changed the same lines",
    PatchVerdict.MISSING_TARGET: "a file it changes is not there",
    PatchVerdict.CORRUPT: "is no well-formed patch",
    PatchVerdict.UNSAFE: "writes where a patch must not write",
}


@dataclass(frozen=True, kw_only=True)
class HunkPlace:
    """Where one hunk went: file, line (from 1), distance in lines from its header, enclosing definition."""

    path: str
    line: int
    offset: int
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class HunkFailure:
    """A file, and the hunk of it (from 1; 0: the whole file), that does not apply."""

    path: str
    hunk: int
    why: str


@dataclass(frozen=True, kw_only=True)
class ClassifiedPatch:
    """The verdict on one patch and one tree, with its reasons.

    files: what applying it changes (None: removed), when it applies, else empty.
    candidate: a patch that would apply: the re-encoded or the three-way merged one.
    """

    patch: str
    verdict: PatchVerdict
    offset: int = 0
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    places: tuple[HunkPlace, ...] = ()
    failures: tuple[HunkFailure, ...] = ()
    files: Mapping[str, TreeFile | None] = field(default_factory=dict, repr=False)
    candidate: bytes | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but file contents."""
        return {
            "patch": self.patch,
            "verdict": self.verdict.value,
            "offset": self.offset,
            "reasons": list(self.reasons),
            "remedies": list(self.remedies),
            "hunks": [
                {"path": place.path, "line": place.line, "offset": place.offset, "symbol": place.symbol}
                for place in self.places
            ],
            "failures": [
                {"path": failure.path, "hunk": failure.hunk, "why": failure.why} for failure in self.failures
            ],
            "candidate": self.candidate is not None,
        }
