"""Where processes stand: their stacks by py-spy, or by the handler our plug-in put into verl's processes.

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
from harness.convergence.trainer.trainer_measurements import StackFrame, ThreadStack
from harness.convergence.trainer.verl_extensions.verl_plugin import STACK_SIGNAL

SECONDS_PER_PROCESS = 15.0
HANDLER_SECONDS = 1.0
MOST_FRAMES = 30
# Autograd runs a device's backward in a thread of its own while the main thread waits for it.
MOST_THREADS = 3

# Programs beside the trainer that wait as long as it lives: Ray's own, and what starts its workers for us.
_SERVING = re.compile(
    r"supervision[./]zygote|/ray/(dashboard|autoscaler|_private/log_monitor)|^ray::\w+Agent$"
)
# Code that waits for others' sake: the frame below it says what for.
_WAITING = re.compile(
    r"(^|/)(ray|asyncio|concurrent|multiprocessing|selectors|threading|queue|subprocess|runpy|hydra|codetiming"
    r"|contextlib|importlib|socketserver|zmq|<frozen)(/|\.py|\b)|supervision/zygote\.py"
)
_HANDLER_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$')
_HANDLER_THREAD = re.compile(r"^(Current t|T)hread (?P<name>0x[0-9a-f]+)")


def frame_text(frame: StackFrame) -> str:
    """`function (file:line)`, the file's path from its package on."""
    return f"{frame.function} ({_short(frame.file)}:{frame.line})"


def collect(processes: Sequence[Process], folder: Path) -> tuple[list[ThreadStack], list[str]]:
    """Stacks of the Python processes among `processes`, and why some could not be had.

    folder: where the plug-in left `<pid>.stacks` files in processes that answer `STACK_SIGNAL`.
    """
    program = shutil.which(
        "py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    found: list[ThreadStack] = []
    problems = [] if program else ["there is no py-spy here"]
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
    """Which actor of verl waits in which calls, one per thread; "" when no stack says."""
    ranked = sorted(
        (stack for stack in stacks if _telling(stack) is not None),
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
    frames = [_telling(stack) for stack in ranked if stack.pid == pid]
    places = list(dict.fromkeys(frame_text(frame) for frame in frames if frame is not None))
    return f"{process} stands in {' and in '.join(places[:MOST_THREADS])}"


def of_py_spy(process: Process, text: str) -> list[ThreadStack]:
    """Stacks of `py-spy dump --json`; none for anything else."""
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
    """Stacks of Python's faulthandler."""
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
    return of_py_spy(process, done.stdout), done.stderr.strip().splitlines()[
        -1
    ] if done.stderr.strip() else ""


def _by_handler(process: Process, folder: Path) -> list[ThreadStack]:
    path = folder / f"{process.pid}.stacks"
    # Without the handler the signal would end the process.
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
    if _SERVING.search(process.command):
        return False
    return Path(program).name.startswith("python") or program.startswith("ray::")


def _is_actor(stack: ThreadStack) -> bool:
    return stack.process.startswith("ray::")


def _has_task(stack: ThreadStack) -> bool:
    """Ray names an actor by the method it runs; without one its threads wait for what others ask."""
    return _is_actor(stack) and "." in stack.process


def _of_verl(stack: ThreadStack) -> bool:
    return any("/verl/" in frame.file for frame in stack.frames)


def _waits_for_ray(stack: ThreadStack) -> bool:
    """Whether it waits for another actor, which then says more."""
    telling = _telling(stack)
    before = stack.frames[: stack.frames.index(telling)] if telling is not None else ()
    return any(_short(frame.file).startswith("ray/") for frame in before)


def _telling(stack: ThreadStack) -> StackFrame | None:
    """The innermost frame that is not there for somebody else's sake."""
    return next((frame for frame in stack.frames if not _WAITING.search(_short(frame.file))), None)


def _short(file: str) -> str:
    return file.rpartition("/site-packages/")[2] or file
