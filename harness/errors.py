"""Errors for the user: what is wrong, where, why, and how to fix it, each with its exit code.

The exit codes (`EXIT_CODES`) are part of the public interface.
"""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness import disk_full
from harness.disk_full import is_disk_full, says_disk_full

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_BAD_INPUT = 2
EXIT_NOTHING_SELECTED = 3
EXIT_INCOMPLETE = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    EXIT_OK: "everything that was planned ran and came out as expected",
    EXIT_UNEXPECTED: "an unexpected failure, or an expected failure that passed",
    EXIT_BAD_INPUT: "bad usage or a bad input file",
    EXIT_NOTHING_SELECTED: "nothing was selected, so nothing was proved",
    EXIT_INCOMPLETE: "a planned task has no outcome, or the infrastructure failed",
    EXIT_INTERRUPTED: "interrupted; the same command resumes",
}


@dataclass(frozen=True)
class Location:
    """A position in a file. Lines and columns start at 1; 0 means unknown."""

    file: Path | str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        parts = [str(self.file)]
        if self.line:
            parts.append(str(self.line))
            if self.column:
                parts.append(str(self.column))
        return ":".join(parts)


@dataclass(frozen=True)
class Problem:
    """One problem of an input: what is wrong, where, why, and how to fix it."""

    what: str
    where: Location | None = None
    why: str = ""
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  do:  {self.fix}")
        return "\n".join(lines)


def is_too_long(error: BaseException | None) -> bool:
    """Whether the error says that a file name is too long: bad usage, since the user chose it."""
    # pygit2 and others have only the text.
    return isinstance(error, Exception) and (
        getattr(error, "errno", None) == errno.ENAMETOOLONG or "File name too long" in str(error)
    )


class HarnessError(Exception):
    """Base class of all errors that are shown without a traceback.

    An error that is created while a full disk is handled, or an InfrastructureError whose reason is the text
    of a full disk, says so with the right remedy, whatever the caller assumed, and has the exit code 4. One
    that is created because a file name is too long has the exit code 2.
    """

    exit_code = EXIT_INCOMPLETE

    def __init__(self, what: str, *, where: Location | None = None, why: str = "", fix: str = "") -> None:
        self.disk_full = is_disk_full(sys.exc_info()[1]) or (
            self.exit_code == EXIT_INCOMPLETE and (says_disk_full(why) or says_disk_full(what))
        )
        if self.disk_full:
            self.exit_code = EXIT_INCOMPLETE
            why = why if "disk is full" in f"{what} {why}" else f"the disk is full: {why}".removesuffix(": ")
            fix = fix if disk_full.is_remedy(fix) else disk_full.FIX
        elif is_too_long(sys.exc_info()[1]):
            self.exit_code = EXIT_BAD_INPUT
            fix = "use shorter names: a name has at most 255 bytes, a path less than 4096"
        self.problems: tuple[Problem, ...] = (Problem(what, where, why, fix),)
        super().__init__(what)

    @classmethod
    def of(cls, problems: list[Problem] | tuple[Problem, ...]) -> HarnessError:
        """One error for several problems; `problems` must not be empty."""
        error = cls(problems[0].what)
        error.problems = tuple(problems)
        return error

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InputError(HarnessError):
    """A bad input file or bad usage: exit code 2."""

    exit_code = EXIT_BAD_INPUT


class NothingSelectedError(HarnessError):
    """The selection is empty: exit code 3."""

    exit_code = EXIT_NOTHING_SELECTED


class InfrastructureError(HarnessError):
    """The machine, the network or a service failed, which says nothing about the cell: exit code 4."""

    exit_code = EXIT_INCOMPLETE


class InterruptedRunError(HarnessError):
    """The run was stopped by the user or a signal; the same command resumes it: exit code 130."""

    exit_code = EXIT_INTERRUPTED


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint with the most similar names of `known`, or with all of them if there are few, or ""."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {_either(near)}?"
    return f"known: {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _either(words: list[str]) -> str:
    return " or ".join(repr(word) for word in words)
