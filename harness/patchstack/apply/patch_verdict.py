"""The possible verdicts on a patch and a tree, and what is reported with a verdict."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from harness.serialisation import JsonValue, json_object
from harness.sources.tree import TreeFile


class PatchVerdict(enum.StrEnum):
    """The verdict on a patch and a tree. JSON output refers to members by position: only append."""

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
    UNSUPPORTED = "unsupported"

    @property
    def applies(self) -> bool:
        """Whether the patch applies unchanged."""
        return self in {PatchVerdict.CLEAN, PatchVerdict.OFFSET}

    @property
    def accepted_by_git(self) -> bool:
        """Whether `git apply --check` accepts the patch. git does not detect misplaced hunks."""
        return self in {PatchVerdict.CLEAN, PatchVerdict.OFFSET, PatchVerdict.MISPLACED}


#: Verdicts ordered by how much work they cause, least first.
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
            PatchVerdict.UNSUPPORTED,
            PatchVerdict.CORRUPT,
            PatchVerdict.UNSAFE,
        )
    )
}
MEANING = {
    PatchVerdict.CLEAN: "applies at the line numbers in its hunk headers",
    PatchVerdict.OFFSET: "applies, but at other line numbers than in its hunk headers",
    PatchVerdict.MERGED: "does not apply unchanged, but a three-way merge has no conflict",
    PatchVerdict.ALREADY_UPSTREAM: "the tree already has this change",
    PatchVerdict.LINE_ENDINGS: "applies after converting its line endings to those of the file",
    PatchVerdict.MISPLACED: "applies, but in another function than it was written for",
    PatchVerdict.CONFLICT: "does not apply: upstream changed the same lines",
    PatchVerdict.MISSING_TARGET: "a file it changes does not exist",
    PatchVerdict.CORRUPT: "is not a well-formed patch",
    PatchVerdict.UNSAFE: "writes to a place where a patch must not write",
    PatchVerdict.UNSUPPORTED: "only `git apply` can say whether it applies: binary, or without context lines",
}


@dataclass(frozen=True, kw_only=True)
class HunkPlace:
    """Where a hunk was applied.

    line: from 1. offset: distance from the line in its header. symbol: the enclosing definition.
    """

    path: str
    line: int
    offset: int
    symbol: str = ""


@dataclass(frozen=True, kw_only=True)
class HunkFailure:
    """A hunk (its number from 1; 0 for the whole file) that does not apply to a file."""

    path: str
    hunk: int
    why: str


@dataclass(frozen=True, kw_only=True)
class MeasuredPatch:
    """The verdict on a patch, as stored and printed. candidate: whether a patch that applies was made."""

    patch: str
    verdict: PatchVerdict
    offset: int = 0
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    hunks: tuple[HunkPlace, ...] = ()
    failures: tuple[HunkFailure, ...] = ()
    candidate: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassifiedPatch(MeasuredPatch):
    """The verdict on one patch and one tree, with file contents.

    files: the new content of every file that the patch changes (None: removed); empty if it does not apply.
    candidate_data: a patch that would apply, with converted line endings or from a three-way merge.
    """

    files: Mapping[str, TreeFile | None] = field(default_factory=dict, repr=False)
    candidate_data: bytes | None = field(default=None, repr=False)

    @property
    def measured(self) -> MeasuredPatch:
        """The same without file contents."""
        return MeasuredPatch(**{member.name: getattr(self, member.name) for member in fields(MeasuredPatch)})

    def to_json(self) -> dict[str, JsonValue]:
        """Everything except file contents."""
        return json_object(self.measured)


@dataclass(frozen=True, kw_only=True)
class FileDigests:
    """SHA-256 of a file before and after the patches; None where there is no file."""

    pre: str | None
    post: str | None
