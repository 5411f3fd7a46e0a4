"""What can be said of one patch and one tree."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.sources.tree import File


class Verdict(enum.StrEnum):
    """Verdict on a (patch, tree) pair. The order is the legend of machine-readable output: only append."""

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
        return self in {Verdict.CLEAN, Verdict.OFFSET}

    @property
    def accepted_by_git(self) -> bool:
        """Whether strict `git apply --check` accepts the pair: it cannot see a misplaced hunk."""
        return self in {Verdict.CLEAN, Verdict.OFFSET, Verdict.MISPLACED}


#: From the verdict that asks for the least to the one that asks for the most.
SEVERITY = {
    verdict: number
    for number, verdict in enumerate(
        (
            Verdict.CLEAN,
            Verdict.OFFSET,
            Verdict.ALREADY_UPSTREAM,
            Verdict.MERGED,
            Verdict.LINE_ENDINGS,
            Verdict.MISSING_TARGET,
            Verdict.CONFLICT,
            Verdict.MISPLACED,
            Verdict.CORRUPT,
            Verdict.UNSAFE,
        )
    )
}
MEANING = {
    Verdict.CLEAN: "applies exactly where it says",
    Verdict.OFFSET: "applies, with lines shifted",
    Verdict.MERGED: "does not apply as it is; a three-way merge has no conflict",
    Verdict.ALREADY_UPSTREAM: "the tree already has this change",
    Verdict.LINE_ENDINGS: "applies once its line endings are those of the file",
    Verdict.MISPLACED: "applies, but into another function than it was written for",
    Verdict.CONFLICT: "does not apply: upstream changed the same lines",
    Verdict.MISSING_TARGET: "a file it changes is not there",
    Verdict.CORRUPT: "is no well-formed patch",
    Verdict.UNSAFE: "writes where a patch must not write",
}


@dataclass(frozen=True, kw_only=True)
class HunkPlace:
    """Where one hunk went: file, line (from 1), distance in lines from its header, enclosing definition."""

    path: str
    line: int
    offset: int
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A file, and the hunk of it (from 1; 0: the whole file), that does not apply."""

    path: str
    hunk: int
    why: str


@dataclass(frozen=True, kw_only=True)
class PatchVerdict:
    """The verdict on one patch and one tree, with its reasons.

    files: what applying it changes (None: removed), when it applies, else empty.
    candidate: a patch that would apply: the re-encoded or the three-way merged one.
    """

    patch: str
    verdict: Verdict
    offset: int = 0
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    places: tuple[HunkPlace, ...] = ()
    failures: tuple[Failure, ...] = ()
    files: Mapping[str, File | None] = field(default_factory=dict, repr=False)
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
