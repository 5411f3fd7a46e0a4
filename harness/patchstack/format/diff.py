"""A parsed patch: its files, hunks and lines, byte for byte."""

from __future__ import annotations

import enum
import stat
from dataclasses import dataclass, replace
from functools import cached_property

#: The file type of a submodule in git's modes (160000).
GITLINK = 0o160000


class PatchFormatError(ValueError):
    """The text is not a usable patch. `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.why = why
        super().__init__(f"line {line}: {why}")


class CorruptPatchError(PatchFormatError):
    """The text is not a well-formed patch."""


class UnsafePatchError(PatchFormatError):
    """The patch would write outside the tree, or write something other than a plain file."""


class ChangeKind(enum.Enum):
    """How a patch changes a file."""

    MODIFY = "modify"
    CREATE = "create"
    DELETE = "delete"
    RENAME = "rename"
    COPY = "copy"


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One hunk.

    section: the text after the second @@.
    lines: pairs of b" ", b"-" or b"+" and the text with its line ending, if it has one.
    line: the line number (from 1) of the hunk's header in the patch.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[tuple[bytes, bytes], ...]
    line: int

    @cached_property
    def pre(self) -> bytes:
        """The text that the hunk replaces: context lines and removed lines."""
        return b"".join(text for op, text in self.lines if op != b"+")

    @cached_property
    def post(self) -> bytes:
        """The text after the change: context lines and added lines."""
        return b"".join(text for op, text in self.lines if op != b"-")

    @cached_property
    def leading(self) -> int:
        """The number of context lines before the first change."""
        return next((at for at, (op, _text) in enumerate(self.lines) if op != b" "), len(self.lines))

    @cached_property
    def trailing(self) -> int:
        """The number of context lines after the last change."""
        return next((at for at, (op, _text) in enumerate(self.lines[::-1]) if op != b" "), len(self.lines))

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        swap = {b" ": b" ", b"-": b"+", b"+": b"-"}
        return replace(
            self,
            old_start=self.new_start,
            old_count=self.new_count,
            new_start=self.old_start,
            new_count=self.old_count,
            lines=tuple((swap[op], text) for op, text in self.lines),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class FilePatch:
    """The changes of a patch to one file. Paths are relative to the tree. Compared by identity."""

    old_path: str | None
    new_path: str | None
    change: ChangeKind
    hunks: tuple[Hunk, ...]
    line: int
    old_mode: str | None = None
    new_mode: str | None = None
    index_old: str | None = None
    index_new: str | None = None
    binary: bool = False

    @property
    def path(self) -> str:
        """The path after the change; for a deletion the old path."""
        return self.new_path or self.old_path or ""

    @property
    def unsupported(self) -> str:
        """Why only git can say whether this change applies, or ""."""
        if self.binary:
            return "the change is binary; only text patches can be checked"
        modes = [mode for mode in (self.old_mode, self.new_mode) if mode is not None]
        if any(stat.S_IFMT(int(mode, 8)) == GITLINK for mode in modes):
            return "it changes the commit of a submodule; only files can be checked"
        return ""

    @property
    def is_symlink(self) -> bool:
        """Whether the changed file is a symbolic link."""
        return self.old_mode is not None and stat.S_ISLNK(int(self.old_mode, 8))

    @property
    def source(self) -> str:
        """The path before the change; for a new file the new path."""
        return self.old_path or self.new_path or ""

    def reversed(self) -> FilePatch:
        """The file patch that undoes this one. A copy stays a copy: undoing it deletes nothing."""
        back = {ChangeKind.CREATE: ChangeKind.DELETE, ChangeKind.DELETE: ChangeKind.CREATE}
        return replace(
            self,
            old_path=self.new_path,
            new_path=self.old_path,
            change=back.get(self.change, self.change),
            hunks=tuple(hunk.reversed() for hunk in self.hunks),
            old_mode=self.new_mode,
            new_mode=self.old_mode,
            index_old=self.index_new,
            index_new=self.index_old,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """A parsed patch. Compared by identity.

    stray: numbers (from 1) of lines that look like changes but come after the last line that their hunk's
    header counts. git ignores them silently.
    """

    files: tuple[FilePatch, ...]
    stray: tuple[int, ...] = ()

    @cached_property
    def undo(self) -> Patch:
        """The patch that undoes this one."""
        return Patch(files=tuple(file.reversed() for file in reversed(self.files)))

    @cached_property
    def unsupported(self) -> bool:
        """Whether a change in it cannot be checked here."""
        return any(file.unsupported for file in self.files)

    @cached_property
    def has_carriage_returns(self) -> bool:
        """Whether any of its lines ends with CR LF."""
        return any(
            text.endswith(b"\r\n") for file in self.files for hunk in file.hunks for _op, text in hunk.lines
        )

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Every path that the patch reads or writes, sorted."""
        found = {path for file in self.files for path in (file.old_path, file.new_path) if path}
        return tuple(sorted(found))
