"""Running a program of this project inside a cell, and the form in which its end is measured.

A program that hangs or crashes is a measurement of the cell. A program that says that it could not be set up
(exit codes 2 and 4) is an error of the infrastructure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.cell_program.built_environment import environment_location
from harness.check import Completed, TaskContext
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_NOTHING_SELECTED, InfrastructureError
from harness.package import IMPORT_ROOT

SHOWN_CHARACTERS = 1000
STORED_CHARACTERS = 4000
CPU_REFERENCE = "the CPU reference"


@dataclass(frozen=True, kw_only=True)
class ProgramFailure:
    """A program that hung or crashed.

    tail: the end of its output. during: what it was working on, or "". on: the device or the reference it
    ran on, or "".
    """

    state: Literal["hung", "crashed"]
    returncode: int
    tail: str
    during: str = ""
    on: str = ""

    @property
    def ending(self) -> str:
        """`hung`, or `ended with exit code 1`: what follows the program's name in a sentence."""
        return "hung" if self.state == "hung" else f"ended with exit code {self.returncode}"

    @property
    def last_line(self) -> tuple[str, ...]:
        """The last line of its output as a sentence for a reason; nothing when it printed nothing."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        return (f"Its last line of output: {lines[-1]}",) if lines else ()


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """A program that has nothing to measure: the cell's packages lack what the check asks about."""

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
    """Run `python -m module args` in the cell, which writes `out`. `what` names it in an error message.

    on: the device. progress: a file in which the program notes what it is working on.
    InfrastructureError when the program could not be set up.
    """
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
    """Run `python -m module args` with the cell's packages on the CPU, without its device.

    torch would otherwise load torch_npu by itself.
    """
    environment = environment_location(context.inputs["environment"])
    variables = {
        "PYTHONPATH": str(IMPORT_ROOT),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        # Stubs for NVIDIA's libraries: a CUDA build of torch does not start without them.
        **({"LD_LIBRARY_PATH": environment.runtime} if environment.runtime else {}),
        **(env or {}),
    }
    completed = context.command([environment.python, "-m", module, *args], env=variables, timeout=timeout)
    return program_end(completed, out=out, what=what, on=CPU_REFERENCE)


def program_end(
    completed: Completed, *, out: Path, what: str, on: str = "", progress: Path | None = None
) -> Completed | ProgramFailure | Unsupported:
    """How a program that should write `out` ended: `completed` itself when it did.

    InfrastructureError when the program said that it could not be set up.
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
