"""Errors for the user: what is wrong, where, why, and how to fix it, each with its exit code.

The exit codes (`EXIT_CODES`) are part of the public interface.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.disk_full import FIX as DISK_FULL_FIX
from harness.disk_full import is_disk_full, says_disk_full

EXIT_OK = 0
EXIT_UNEXPECTED = 1
EXIT_BAD_INPUT = 2
EXIT_NOTHING_SELECTED = 3
EXIT_INCOMPLETE = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    EXIT_OK: "every check that ran came out as expected",
    EXIT_UNEXPECTED: "an unexpected failure, or an expected failure that passed",
    EXIT_BAD_INPUT: "bad usage or a bad input file",
    EXIT_NOTHING_SELECTED: "nothing was selected, so nothing was proved",
    EXIT_INCOMPLETE: "a planned task has no outcome, or the infrastructure failed",
    EXIT_INTERRUPTED: "interrupted; the same command resumes",
}
_SHORTER_NAMES = "use shorter names: a name has at most 255 bytes, a path less than 4096"


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


def _of_full_disk(problem: Problem) -> Problem:
    known = "disk is full" in f"{problem.what} {problem.why}"
    why = problem.why if known else f"the disk is full: {problem.why}".removesuffix(": ")
    return replace(problem, why=why, fix=DISK_FULL_FIX)


class HarnessError(Exception):
    """Base class of all errors that are shown without a traceback.

    An error that a full disk caused, or an InfrastructureError whose reason is the text of a full disk, says
    so with the right remedy, whatever the caller assumed, and has the exit code 4. One that was caused by a
    file name that is too long has the exit code 2. Its cause is what was handled when it was raised.
    """

    usual_exit_code = EXIT_INCOMPLETE

    def __init__(self, what: str, *, where: Location | None = None, why: str = "", fix: str = "") -> None:
        self._problems: tuple[Problem, ...] = (Problem(what, where, why, fix),)
        super().__init__(what)

    @property
    def disk_full(self) -> bool:
        """Whether a full disk is the cause."""
        texts = [f"{problem.what}\n{problem.why}" for problem in self._problems]
        of_machine = self.usual_exit_code == EXIT_INCOMPLETE
        return is_disk_full(self._cause) or (of_machine and any(map(says_disk_full, texts)))

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this error."""
        if self.disk_full:
            return EXIT_INCOMPLETE
        return EXIT_BAD_INPUT if is_too_long(self._cause) else self.usual_exit_code

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What to show; at least one."""
        if self.disk_full:
            return tuple(map(_of_full_disk, self._problems))
        if is_too_long(self._cause):
            return tuple(replace(problem, fix=_SHORTER_NAMES) for problem in self._problems)
        return self._problems

    @property
    def _cause(self) -> BaseException | None:
        return self.__cause__ or self.__context__

    @classmethod
    def of(cls, problems: list[Problem] | tuple[Problem, ...]) -> HarnessError:
        """One error for several problems; `problems` must not be empty."""
        error = cls(problems[0].what)
        error._problems = tuple(problems)
        return error

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class InputError(HarnessError):
    """A bad input file or bad usage: exit code 2."""

    usual_exit_code = EXIT_BAD_INPUT


class NothingSelectedError(HarnessError):
    """The selection is empty: exit code 3."""

    usual_exit_code = EXIT_NOTHING_SELECTED


class InfrastructureError(HarnessError):
    """The machine, the network or a service failed, which says nothing about the cell: exit code 4."""

    usual_exit_code = EXIT_INCOMPLETE


class DiskSpaceError(InfrastructureError):
    """A disk has too little space, and whoever raises this knows which one and what to do: exit code 4."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What to show, with the remedy for this disk."""
        return self._problems


class InterruptedRunError(HarnessError):
    """The run was stopped by the user or a signal; the same command resumes it: exit code 130."""

    usual_exit_code = EXIT_INTERRUPTED


def caused_by(error: HarnessError, cause: BaseException) -> HarnessError:
    """`error` with its cause, for an error that is shown and not raised."""
    error.__cause__ = cause
    return error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint with the most similar names of `known`, or with all of them if there are few, or ""."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {_either(near)}?"
    return f"known: {', '.join(names)}" if 0 < len(names) <= 20 else ""


def _either(words: list[str]) -> str:
    return " or ".join(repr(word) for word in words)
