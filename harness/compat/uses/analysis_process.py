"""Analyses in a program of their own: several run at a time, and their memory goes back when they end."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.check import TaskContext
from harness.errors import EXIT_BAD_INPUT, InfrastructureError, InputError
from harness.package import IMPORT_ROOT

REQUEST = "request.json"
ANSWER = "answer.json"


def analyse(ctx: TaskContext, program: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the module `program` (see `serve`) on a request; both are JSON.

    InputError when it is one there, InfrastructureError when the program does not get to an answer.
    """
    ctx.workdir.joinpath(REQUEST).write_text(json.dumps(request), encoding="utf-8")
    done = ctx.command(
        [sys.executable, "-m", program, REQUEST, ANSWER],
        env={"PYTHONPATH": str(IMPORT_ROOT)},
        cwd=ctx.workdir,
    )
    if done.returncode == EXIT_BAD_INPUT:
        raise InputError(done.tail.strip() or "a package cannot be read")
    if done.returncode:
        raise InfrastructureError(
            f"{program} ended with exit code {done.returncode}",
            why="it took too long" if done.timed_out else done.tail.strip()[-1000:],
            fix="run it again; if it stays so, report the log of this task",
        )
    answer: dict[str, Any] = json.loads(ctx.workdir.joinpath(ANSWER).read_text(encoding="utf-8"))
    return answer


def serve(examine: Callable[[Mapping[str, Any]], dict[str, Any]], request: str, answer: str) -> int:
    """The main function of an analysis program: read the request, examine it, write the answer."""
    # Syntax trees are millions of objects without cycles: looking for some costs half of the time, and memory
    # is the same without.
    gc.disable()
    try:
        found = examine(json.loads(Path(request).read_text(encoding="utf-8")))
    except InputError as error:
        print(error)
        return EXIT_BAD_INPUT
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0
