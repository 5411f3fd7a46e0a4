"""Run an analysis in a process of its own: analyses run in parallel, and the memory of each is freed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from harness.check import TaskContext
from harness.errors import EXIT_BAD_INPUT, InfrastructureError, InputError
from harness.gc_pause import gc_paused
from harness.measurements import read_shape
from harness.package import IMPORT_ROOT

REQUEST_FILE = "request.json"
RESULT_FILE = "result.json"
Request = TypeVar("Request")
Result = TypeVar("Result")


def analyse(ctx: TaskContext, program: str, request: object, result: type[Result]) -> Result:
    """Run the module `program`, whose main function is `serve`, on a dataclass and read its result.

    InputError when the program reports one, InfrastructureError when it ends without a result.
    """
    _write(ctx.workdir / REQUEST_FILE, request)
    done = ctx.command(
        [sys.executable, "-m", program, REQUEST_FILE, RESULT_FILE],
        env={"PYTHONPATH": str(IMPORT_ROOT)},
        cwd=ctx.workdir,
    )
    if done.returncode == EXIT_BAD_INPUT:
        raise InputError(done.tail.strip() or "a package cannot be read")
    if done.returncode:
        raise InfrastructureError(
            f"{program} ended with exit code {done.returncode}",
            why="it took too long" if done.timed_out else done.tail.strip()[-1000:],
            fix="run it again; if it fails again, report the log of this task",
        )
    return read_shape(result, ctx.workdir / RESULT_FILE)


def serve(
    request_type: type[Request], examine: Callable[[Request], object], request_file: str, result_file: str
) -> int:
    """The main function of an analysis program: read the request, run `examine` on it, write the result.

    Returns the exit code.
    """
    # Syntax trees are millions of objects without reference cycles: the search for cycles would take half of
    # the time and free no memory.
    with gc_paused():
        request = read_shape(request_type, Path(request_file))
        try:
            result = examine(request)
        except InputError as error:
            print(error)
            return EXIT_BAD_INPUT
        _write(Path(result_file), result)
    return 0


def _write(file: Path, value: object) -> None:
    file.write_bytes(TypeAdapter(type(value)).dump_json(value))
