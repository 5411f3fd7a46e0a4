"""A parsed patch: its files, hunks and lines, byte for byte."""

from __future__ import annotations

import enum
import stat
from dataclasses import dataclass, field
from functools import cached_property


class CorruptPatchError(ValueError):
    """The text is not a well-formed patch. `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.why = why
        super().__init__(f"line {line}: {why}")


class UnsafePatchError(ValueError):
    """The patch would write to a place where a patch must not write."""

    def __init__(self, line: int, why: str) -> None:
        self.line = line
        self.why = why
        super().__init__(f"line {line}: {why}")


class ChangeKind(enum.Enum):
    """How a patch changes a file."""

    MODIFY = "modify"
    CREATE = "create"
    DELETE = "delete"
    RENAME = "rename"
    COPY = "copy"


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One hunk. Each line is a pair: b" ", b"-" or b"+", and the text with its line ending, if any."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    lines: tuple[tuple[bytes, bytes], ...]
    line: int
    pre: bytes = field(init=False, repr=False)
    post: bytes = field(init=False, repr=False)
    leading: int = field(init=False)
    trailing: int = field(init=False)

    def __post_init__(self) -> None:
        flags = [op == b" " for op, _text in self.lines]
        changed = flags.index(False) if False in flags else len(flags)
        after = flags[::-1].index(False) if False in flags else len(flags)
        object.__setattr__(self, "pre", b"".join(text for op, text in self.lines if op != b"+"))
        object.__setattr__(self, "post", b"".join(text for op, text in self.lines if op != b"-"))
        object.__setattr__(self, "leading", changed)
        object.__setattr__(self, "trailing", after)

    @property
    def first_change(self) -> int:
        """Offset of the first changed line from the hunk's first old line."""
        return self.leading

    def reversed(self) -> Hunk:
        """The hunk that undoes this one."""
        swap = {b" ": b" ", b"-": b"+", b"+": b"-"}
        return Hunk(
            old_start=self.new_start,
            old_count=self.new_count,
            new_start=self.old_start,
            new_count=self.old_count,
            section=self.section,
            lines=tuple((swap[op], text) for op, text in self.lines),
            line=self.line,
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
        return FilePatch(
            old_path=self.new_path,
            new_path=self.old_path,
            change=back.get(self.change, self.change),
            hunks=tuple(hunk.reversed() for hunk in self.hunks),
            line=self.line,
            old_mode=self.new_mode,
            new_mode=self.old_mode,
            index_old=self.index_new,
            index_new=self.index_old,
            binary=self.binary,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """A parsed patch. Compared by identity.

    stray: numbers (from 1) of lines that look like changes but come after the end of their hunk, as its
    header counts them. git ignores them silently.
    """

    files: tuple[FilePatch, ...]
    stray: tuple[int, ...] = ()

    @cached_property
    def undo(self) -> Patch:
        """The patch that undoes this one."""
        return Patch(files=tuple(file.reversed() for file in reversed(self.files)))

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
