"""Parser of unified diffs. A patch is corrupt here exactly if git calls it corrupt.

The rules are those of git's apply.c (2.39): header names, hunk counts, "\\ No newline" lines, file modes.
git silently ignores changes after the end of their hunk; they are ignored here too, but recorded.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from harness.patchstack.format.diff import (
    GITLINK,
    ChangeKind,
    CorruptPatchError,
    FilePatch,
    Hunk,
    Patch,
    UnsafePatchError,
)
from harness.patchstack.format.diff_file_names import (
    decode_path,
    default_name,
    is_epoch,
    is_null,
    read_name,
    stripped,
)
from harness.sources.tree import path_problem

#: git refuses patches of 1 GiB. Real source patches are far smaller than this limit.
MAX_PATCH_BYTES = 256 << 20
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)", re.DOTALL)
_ID = re.compile(rb"[0-9a-f]{4,64}")
_LONGEST_ID = 64
_FILE_TYPES = {stat.S_IFREG, stat.S_IFLNK, GITLINK}
_FILE_MODES = {"100644", "100755", "100664", "120000", "160000"}


def parse_patch(data: bytes) -> Patch:
    """Parse a patch whose paths have one leading component (`a/`, `b/`).

    CorruptPatchError if git would not accept it; UnsafePatchError if a path is outside the tree.
    """
    if len(data) > MAX_PATCH_BYTES:
        raise CorruptPatchError(1, f"the patch has {len(data)} bytes, more than the limit of 256 MiB")
    parser = _DiffParser(data)
    files = tuple(parser.files())
    if not files:
        raise CorruptPatchError(1, "it contains no file changes")
    for file in files:
        _check_paths(file)
    return Patch(files=files, stray=tuple(parser.stray))


def _check_paths(file: FilePatch) -> None:
    for path in (file.old_path, file.new_path):
        problem = path_problem(path) if path is not None else ""
        if problem:
            raise UnsafePatchError(file.line, f"{problem} in {path!r}")
    if file.old_mode is not None and stat.S_IFMT(int(file.old_mode, 8)) not in _FILE_TYPES:
        raise UnsafePatchError(file.line, f"mode {file.old_mode} of {file.path!r} is not a file mode")
    if file.new_mode is not None and file.new_mode not in _FILE_MODES:
        raise UnsafePatchError(
            file.line, f"mode {file.new_mode} of {file.path!r} is not the mode of a plain file"
        )


@dataclass
class _Header:
    """The lines between `diff --git` and the first hunk."""

    line: int
    default: str | None = None
    old: str | None = None
    new: str | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    created: bool = False
    deleted: bool = False
    renamed: bool = False
    copied: bool = False
    index_old: str | None = None
    index_new: str | None = None
    metadata: bool = False


class _DiffParser:
    """A cursor over the lines of a patch."""

    def __init__(self, data: bytes) -> None:
        self.lines = data.split(b"\n")
        self.unterminated = bool(self.lines[-1])
        if not self.unterminated:
            self.lines.pop()
        self.at = 0
        self.stray: list[int] = []
        # The name of a `diff --git` line without a header after it: git uses it for the next file.
        self.carried: str | None = None

    def files(self) -> Iterator[FilePatch]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"diff --git "):
                file = self._git_file()
                if file:
                    yield file
            elif self._traditional():
                yield self._traditional_file()
            elif line.startswith(b"@@ -") and _HUNK.match(line):
                raise CorruptPatchError(self.at + 1, "a hunk without a file header before it")
            else:
                self.at += 1

    def _traditional(self) -> bool:
        if self.at + 2 >= len(self.lines):
            return False
        first, second, third = self.lines[self.at : self.at + 3]
        return first.startswith(b"--- ") and second.startswith(b"+++ ") and third.startswith(b"@@ -")

    def _git_file(self) -> FilePatch | None:
        """The file patch after a `diff --git` line; None if no header follows, then git skips the line."""
        default = default_name(self.lines[self.at][11:])
        header = _Header(line=self.at + 1, default=default, old=self.carried, new=self.carried)
        self.at += 1
        # git does not accept a last line without a newline as a header line.
        end = len(self.lines) - self.unterminated
        while self.at < end and self._extended(header, self.lines[self.at]):
            self.at += 1
        if self.at == header.line and (header.default or self.carried):
            self.carried = self.carried or header.default
            return None
        self.carried = None
        if header.old is None and header.new is None:
            header.old = None if header.created else header.default
            header.new = None if header.deleted else header.default
        if (header.old is None and not header.created) or (header.new is None and not header.deleted):
            raise CorruptPatchError(header.line, "the header does not name both files")
        hunks, binary = self._hunks(), False
        if not hunks:
            binary = self._binary()
            if not (binary or header.metadata):
                raise CorruptPatchError(header.line, "a file header without a change after it")
        return self._finish(header, hunks, binary=binary)

    def _extended(self, header: _Header, line: bytes) -> bool:
        """Read one line of a git header; False if the header has ended."""
        if line.startswith(b"@@ -"):
            return False
        if line.startswith(b"--- "):
            header.old = self._verified(header.old, line[4:], absent=header.created)
        elif line.startswith(b"+++ "):
            header.new = self._verified(header.new, line[4:], absent=header.deleted)
        elif line.startswith(b"old mode "):
            header.old_mode = self._mode(line[9:])
        elif line.startswith(b"new mode "):
            header.new_mode = self._mode(line[9:])
            header.metadata = header.old_mode not in {None, header.new_mode}
        elif line.startswith(b"deleted file mode "):
            header.deleted = header.metadata = True
            header.old_mode = self._mode(line[18:])
            header.old = header.default
        elif line.startswith(b"new file mode "):
            header.created = header.metadata = True
            header.new_mode = self._mode(line[14:])
            header.new = header.default
        elif line.startswith((b"copy from ", b"rename from ", b"rename old ")):
            header.copied = line.startswith(b"copy")
            header.renamed = header.metadata = True
            header.old = self._whole_name(line.split(b" ", 2)[2])
        elif line.startswith((b"copy to ", b"rename to ", b"rename new ")):
            header.new = self._whole_name(line.split(b" ", 2)[2])
        elif line.startswith(b"index "):
            self._index(header, line[6:])
        elif not line.startswith((b"similarity index ", b"dissimilarity index ")):
            return False
        return True

    def _index(self, header: _Header, text: bytes) -> None:
        """Read the blob ids and the mode of an index line. Like git, ignore a line without two dots."""
        old, dots, rest = text.partition(b"..")
        new, space, mode = rest.partition(b" ")
        if not dots or max(len(old), len(new.rstrip())) > _LONGEST_ID:
            return
        if _ID.fullmatch(old) and _ID.fullmatch(new.rstrip()):
            header.index_old, header.index_new = old.decode(), new.rstrip().decode()
        if space:
            header.old_mode = self._mode(mode)

    def _verified(self, known: str | None, text: bytes, *, absent: bool) -> str | None:
        null = is_null(text)
        if absent:
            if not null:
                raise CorruptPatchError(
                    self.at + 1, "the header says that there is no file, but this line names one"
                )
            return None
        name = stripped(read_name(text))
        if name is None or null:
            raise CorruptPatchError(self.at + 1, "no file name on this line")
        if known is not None and name != known:
            raise CorruptPatchError(self.at + 1, f"the header names {known!r}, this line {name!r}")
        return name

    def _whole_name(self, text: bytes) -> str:
        name = read_name(text)
        if not name:
            raise CorruptPatchError(self.at + 1, "no file name on this line")
        return decode_path(name)

    def _mode(self, text: bytes) -> str:
        found = re.match(rb"\s*([0-7]{1,10})(\s|$)", text)
        if not found:
            raise CorruptPatchError(self.at + 1, "this is not a file mode")
        return found[1].decode().zfill(6)

    def _traditional_file(self) -> FilePatch:
        header = _Header(line=self.at + 1)
        old, new = self.lines[self.at][4:], self.lines[self.at + 1][4:]
        self.at += 2
        header.created = is_null(old) or (not is_null(new) and is_epoch(old))
        header.deleted = not header.created and (is_null(new) or is_epoch(new))
        if self.carried and (header.created or header.deleted):
            raise CorruptPatchError(header.line, f"the line before names another file, {self.carried!r}")
        self.carried = None
        first, second = stripped(read_name(old)), stripped(read_name(new))
        # Without a git header the new name is used, unless it is the old name plus a suffix such as `.new`.
        has_suffix = first and second and second != first and second.startswith(first)
        name = first if is_null(new) or has_suffix or second is None else second
        header.old = None if header.created else name
        header.new = None if header.deleted else name
        if header.old is None and header.new is None:
            raise CorruptPatchError(header.line, "the header names no file")
        return self._finish(header, self._hunks(), binary=False)

    def _finish(self, header: _Header, hunks: tuple[Hunk, ...], *, binary: bool) -> FilePatch:
        change = ChangeKind.MODIFY
        if header.created:
            change = ChangeKind.CREATE
            if any(hunk.old_count for hunk in hunks):
                raise CorruptPatchError(header.line, "a new file whose hunks have old lines")
        elif header.deleted:
            change = ChangeKind.DELETE
            if any(hunk.new_count for hunk in hunks):
                raise CorruptPatchError(header.line, "a deleted file whose hunks have new lines")
        elif header.copied:
            change = ChangeKind.COPY
        elif header.renamed or header.old != header.new:
            change = ChangeKind.RENAME
        return FilePatch(
            old_path=header.old,
            new_path=header.new,
            change=change,
            hunks=hunks,
            line=header.line,
            old_mode=header.old_mode,
            new_mode=header.new_mode,
            index_old=header.index_old,
            index_new=header.index_new,
            binary=binary,
        )

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks = []
        while self.at < len(self.lines) and self.lines[self.at].startswith(b"@@ -"):
            hunks.append(self._hunk())
        return tuple(hunks)

    def _hunk(self) -> Hunk:
        start = self.at + 1
        found = _HUNK.fullmatch(self.lines[self.at])
        if not found:
            raise CorruptPatchError(start, "this is not a hunk header")
        old = int(found[2]) if found[2] is not None else 1
        new = int(found[4]) if found[4] is not None else 1
        counts = (old, new)
        self.at += 1
        body: list[tuple[bytes, bytes]] = []
        while old or new:
            if self.at >= len(self.lines):
                raise CorruptPatchError(
                    self.at,
                    f"the hunk at line {start} ends too early: {old} old and {new} new lines are missing",
                )
            self._hunk_line(body)
            op = body[-1][0]
            if self.lines[self.at][:1] != b"\\":
                old, new = old - (op != b"+"), new - (op != b"-")
                if old < 0 or new < 0:
                    raise CorruptPatchError(
                        self.at + 1, f"the hunk at line {start} has more lines than its header says"
                    )
            self.at += 1
        if self.at < len(self.lines) and _is_no_newline(self.lines[self.at]):
            _drop_newline(body)
            self.at += 1
        elif self.at < len(self.lines) and self._stray(self.lines[self.at]):
            self.stray.append(self.at + 1)
        if all(op == b" " for op, _text in body):
            raise CorruptPatchError(start, "a hunk that changes nothing")
        return Hunk(
            old_start=int(found[1]),
            old_count=counts[0],
            new_start=int(found[3]),
            new_count=counts[1],
            section=found[5].strip(),
            lines=tuple(body),
            line=start,
        )

    def _stray(self, line: bytes) -> bool:
        """Whether this line after the end of a hunk looks like a change. git would ignore it silently."""
        if line.startswith(b"+"):
            return True
        following = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""
        signature = line.rstrip() == b"--" or (line.startswith(b"--- ") and following.startswith(b"+++ "))
        return line.startswith(b"-") and not signature

    def _hunk_line(self, body: list[tuple[bytes, bytes]]) -> None:
        line = self.lines[self.at]
        if self.unterminated and self.at == len(self.lines) - 1:
            raise CorruptPatchError(self.at + 1, "the patch is cut off inside a line")
        op = line[:1] or b" "
        if op in {b" ", b"+", b"-"}:
            body.append((op, line[1:] + b"\n"))
        elif _is_no_newline(line) and body:
            _drop_newline(body)
        else:
            raise CorruptPatchError(self.at + 1, "this line cannot be part of a hunk")

    def _binary(self) -> bool:
        if self.at >= len(self.lines):
            return False
        line = self.lines[self.at]
        if line.rstrip() == b"GIT binary patch":
            return True
        return line.startswith((b"Binary files ", b"Files ")) and line.rstrip().endswith(b" differ")


def _is_no_newline(line: bytes) -> bool:
    # Like git, assume that translations of this note are not shorter.
    return len(line) >= 11 and line.startswith(b"\\ ")


def _drop_newline(body: list[tuple[bytes, bytes]]) -> None:
    op, text = body[-1]
    body[-1] = (op, text.removesuffix(b"\n"))
