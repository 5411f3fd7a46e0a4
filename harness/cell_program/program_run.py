"""Runs a program of this project inside a cell and classifies how it ended.

A hang or a crash is a measurement of the cell. Exit codes 2 and 4 mean that the program could not be set up,
which is an infrastructure error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.check import Completed, TaskContext
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, InfrastructureError

SHOWN_CHARACTERS = 1000
STORED_CHARACTERS = 4000
CPU_REFERENCE = "the CPU reference"


@dataclass(frozen=True, kw_only=True)
class ProgramFailure:
    """A program that hung or crashed.

    tail: the end of its output. during: what it was working on, "" if unknown. on: the device, or
    `CPU_REFERENCE`, on which it ran, "" if that does not matter.
    """

    state: Literal["hung", "crashed"]
    returncode: int
    tail: str
    during: str = ""
    on: str = ""

    @property
    def ending(self) -> str:
        """A predicate for the program's name in a sentence: `hung` or `ended with exit code 1`."""
        return "hung" if self.state == "hung" else f"ended with exit code {self.returncode}"

    @property
    def last_line(self) -> tuple[str, ...]:
        """A reason that quotes the last line of its output; empty when it printed nothing."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return (f"Its last line of output: {lines[-1]}",) if lines else ()


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """A program that has nothing to measure, because the cell's packages lack what the check tests."""

    state: Literal["unsupported"] = "unsupported"
    why: str


def run_in_cell(
    context: TaskContext,
    module: str,
    *args: str,
    out: Path,
    what: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
    on: str = "",
    progress: Path | None = None,
) -> Completed | ProgramFailure | Unsupported:
    """Run `python -m module args` in the cell; see `program_end` for the result and the other arguments."""
    completed = context.in_cell(module, *args, env=env, timeout=timeout)
    return program_end(completed, out=out, what=what, on=on, progress=progress)


def run_reference(
    context: TaskContext,
    module: str,
    *args: str,
    out: Path,
    what: str,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> Completed | ProgramFailure | Unsupported:
    """Run `python -m module args` with the cell's packages on the CPU; see `program_end` for the result."""
    # One thread: the order of a sum, and with it the rounding, must not depend on the number of CPUs.
    variables = {"OMP_NUM_THREADS": "1", **(env or {})}
    completed = context.in_cell(module, *args, env=variables, timeout=timeout, on_cpu=True)
    return program_end(completed, out=out, what=what, on=CPU_REFERENCE)


def program_end(
    completed: Completed, *, out: Path, what: str, on: str = "", progress: Path | None = None
) -> Completed | ProgramFailure | Unsupported:
    """How a program ended: `completed` itself when it succeeded and wrote the file `out`.

    what: the program's name for an error message. on: the device on which it ran. progress: a file in which
    the program notes what it is working on. InfrastructureError when the program could not be set up.
    """
    if completed.timed_out:
        return _failure(completed, on, progress)
    if completed.returncode == EXIT_NOTHING_SELECTED:
        return Unsupported(why=completed.tail[-SHOWN_CHARACTERS:].strip())
    if completed.returncode in {EXIT_BAD_INPUT, EXIT_INCOMPLETE}:
        raise InfrastructureError(
            f"{what} could not be set up in the cell",
            why=completed.tail[-SHOWN_CHARACTERS:].strip() or f"exit code {completed.returncode}",
            fix="correct what the message names, then run again",
        )
    if completed.returncode != 0 or not out.is_file():
        return _failure(completed, on, progress)
    return completed


def cell_device(context: TaskContext) -> str:
    """The device of the cell as torch names it: `cpu` or `npu:0`."""
    return "cpu" if context.facets.get("device", {}).get("kind") == "cpu" else "npu:0"


def _failure(completed: Completed, on: str, progress: Path | None) -> ProgramFailure:
    return ProgramFailure(
        state="hung" if completed.timed_out else "crashed",
        returncode=completed.returncode,
        tail=completed.tail[-STORED_CHARACTERS:],
        during=progress.read_text(encoding="utf-8") if progress and progress.is_file() else "",
        on=on,
    )
