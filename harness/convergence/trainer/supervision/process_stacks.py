"""Reads the stacks of processes with py-spy, or with the signal handler that `verl_plugin` installs.

In-cell module; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.convergence.trainer.supervision.processes import Process
from harness.convergence.trainer.trainer_environment import STACK_SIGNAL
from harness.convergence.trainer.trainer_measurements import StackFrame, ThreadStack

SECONDS_PER_PROCESS = 15.0
HANDLER_SECONDS = 1.0
MOST_FRAMES = 30
# Autograd runs the backward of a device in a separate thread while the main thread waits for it.
MOST_THREADS = 3

# Programs that wait as long as the trainer lives: those of Ray, and the zygote that forks its workers.
_SERVICES = re.compile(
    r"supervision[./]zygote|/ray/(dashboard|autoscaler|_private/log_monitor)|^ray::\w+Agent$"
)
# Code that only waits or calls other code; the caller's frame shows what the process waits for.
_GENERIC = re.compile(
    r"(^|/)(ray|asyncio|concurrent|multiprocessing|selectors|threading|queue|subprocess|runpy|hydra|codetiming"
    r"|contextlib|importlib|socketserver|zmq|<frozen)(/|\.py|\b)|supervision/zygote\.py"
)
_HANDLER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$')
_HANDLER_THREAD = re.compile(r"^(Current t|T)hread (?P<name>0x[0-9a-f]+)")


def frame_text(frame: StackFrame) -> str:
    """`function (file:line)`, with the file's path relative to site-packages."""
    return f"{frame.function} ({_short(frame.file)}:{frame.line})"


def collect(processes: Sequence[Process], folder: Path) -> tuple[list[ThreadStack], list[str]]:
    """The stacks of the Python processes among `processes`, and why some could not be read.

    folder: the folder of the `<pid>.stacks` files. A process with such a file handles `STACK_SIGNAL`.
    """
    program = shutil.which(
        "py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    found: list[ThreadStack] = []
    problems = [] if program else ["py-spy is not installed"]
    for process in processes:
        if not _is_python(process):
            continue
        stacks, problem = _by_py_spy(program, process) if program else ([], "")
        if not stacks:
            stacks = _by_handler(process, folder)
        if not stacks and problem:
            problems.append(f"{process.pid} {process.command[:60]}: {problem}")
        found += stacks
    return found, problems


def where(stacks: Sequence[ThreadStack]) -> str:
    """The actor of verl that most likely hangs, with one call for each thread; "" when no stack shows it."""
    ranked = sorted(
        (stack for stack in stacks if _specific_frame(stack) is not None),
        key=lambda stack: (
            not _has_task(stack),
            _waits_for_ray(stack),
            not _is_actor(stack),
            not _of_verl(stack),
            stack.pid,
        ),
    )
    if not ranked:
        return ""
    pid, process = ranked[0].pid, ranked[0].process.split(" ")[0]
    frames = [_specific_frame(stack) for stack in ranked if stack.pid == pid]
    calls = list(dict.fromkeys(frame_text(frame) for frame in frames if frame is not None))
    return f"{process} hangs in {' and in '.join(calls[:MOST_THREADS])}"


def of_py_spy(process: Process, text: str) -> list[ThreadStack]:
    """The stacks in the output of `py-spy dump --json`; none when the text is something else."""
    try:
        threads = json.loads(text)
        return [
            ThreadStack(
                pid=process.pid,
                process=process.command,
                thread=str(thread.get("thread_name") or thread.get("thread_id")),
                frames=tuple(
                    StackFrame(
                        function=str(frame["name"]),
                        file=str(frame["filename"]),
                        line=int(frame.get("line") or 0),
                    )
                    for frame in thread["frames"][:MOST_FRAMES]
                ),
            )
            for thread in threads
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def of_handler(process: Process, text: str) -> list[ThreadStack]:
    """The stacks in the output of Python's faulthandler."""
    threads: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        thread, frame = _HANDLER_THREAD.match(line), _HANDLER_FRAME.match(line)
        if thread:
            threads.append((thread["name"], []))
        elif frame and threads and len(threads[-1][1]) < MOST_FRAMES:
            threads[-1][1].append(
                StackFrame(function=frame["function"], file=frame["file"], line=int(frame["line"]))
            )
    return [
        ThreadStack(pid=process.pid, process=process.command, thread=name, frames=tuple(frames))
        for name, frames in threads
    ]


def _by_py_spy(program: str, process: Process) -> tuple[list[ThreadStack], str]:
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--pid", str(process.pid)],
            capture_output=True,
            text=True,
            timeout=SECONDS_PER_PROCESS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    errors = done.stderr.strip().splitlines()
    return of_py_spy(process, done.stdout), errors[-1] if errors else ""


def _by_handler(process: Process, folder: Path) -> list[ThreadStack]:
    path = folder / f"{process.pid}.stacks"
    # A process without the handler would be killed by the signal.
    if not path.is_file():
        return []
    with contextlib.suppress(OSError):
        os.kill(process.pid, STACK_SIGNAL)
    deadline = time.monotonic() + HANDLER_SECONDS
    while time.monotonic() < deadline and not path.stat().st_size:
        time.sleep(0.05)
    return of_handler(process, path.read_text(encoding="utf-8", errors="replace"))


def _is_python(process: Process) -> bool:
    program = process.command.split(" ")[0]
    if _SERVICES.search(process.command):
        return False
    return Path(program).name.startswith("python") or program.startswith("ray::")


def _is_actor(stack: ThreadStack) -> bool:
    return stack.process.startswith("ray::")


def _has_task(stack: ThreadStack) -> bool:
    """Whether the actor runs a method: Ray puts the method's name into the command of the process."""
    return _is_actor(stack) and "." in stack.process


def _of_verl(stack: ThreadStack) -> bool:
    return any("/verl/" in frame.file for frame in stack.frames)


def _waits_for_ray(stack: ThreadStack) -> bool:
    """Whether it waits for another actor, whose stack then shows the cause."""
    specific = _specific_frame(stack)
    inner = stack.frames[: stack.frames.index(specific)] if specific is not None else ()
    return any(_short(frame.file).startswith("ray/") for frame in inner)


def _specific_frame(stack: ThreadStack) -> StackFrame | None:
    """The innermost frame whose code does not only wait for or call other code."""
    return next((frame for frame in stack.frames if not _GENERIC.search(_short(frame.file))), None)


def _short(file: str) -> str:
    return file.rpartition("/site-packages/")[2] or file
