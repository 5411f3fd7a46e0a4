"""Run a training program, kill it when it makes no progress, and leave none of its processes behind.

In-cell module. Linux only.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.convergence.trainer.supervision import process_stacks as stacks
from harness.convergence.trainer.supervision import processes
from harness.convergence.trainer.trainer_measurements import ThreadStack

TICK_SECONDS = 0.5
CHUNK_BYTES = 1 << 16
# Time limits grow with the load of the machine, but at most by this factor.
MOST_CROWDED = 3.0


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds until the first step, and between two steps, that a program may take on an idle machine."""

    start_up: float
    step: float


@dataclass(frozen=True, kw_only=True)
class TrainerEnd:
    """How a program ended.

    returncode: None when the program was killed, because it made no progress or because of `stop_reason`.
    seconds: wall time. start_up: seconds until the first step, None when there was none.
    stop_reason: why the program was stopped before its last step, or "".
    where: the call at which it stopped making progress. stacks: the stacks of all its processes then.
    problems: what went wrong while the stacks were collected.
    swept: how many processes it left behind, or were killed with it.
    """

    returncode: int | None
    seconds: float
    start_up: float | None
    stop_reason: str = ""
    where: str = ""
    stacks: tuple[ThreadStack, ...] = ()
    problems: tuple[str, ...] = ()
    swept: int = 0


def run_supervised(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    process_folder: Path,
    take: Callable[[str], None],
    steps: Callable[[], int],
    limits: TimeLimits,
    stop_reason: Callable[[], str] = lambda: "",
    helper: Sequence[str] = (),
) -> TrainerEnd:
    """Run `argv`, watch its progress, and kill every process it started when it has ended.

    take: receives stdout and stderr, merged, as the program writes them.
    steps: returns the number of training steps made so far.
    stop_reason: called after each step; a text that is not empty is a reason to stop the program now.
    helper: the command of a program that serves `argv` and is killed when `argv` has ended.

    When no step is made within `limits`, the stacks of all processes are collected and the program is killed.
    """
    processes.adopt_orphans()
    others = frozenset(process.pid for process in processes.descendants())
    started = time.monotonic()
    helper_process = (
        subprocess.Popen(helper, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL) if helper else None
    )
    with subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        made, last, start_up, hung, reason = 0, started, None, False, ""
        while process.poll() is None and not hung and not reason:
            _pass_on(process, take)
            now = time.monotonic()
            if steps() > made:
                made, last = steps(), now
                start_up = start_up if start_up is not None else now - started
                reason = stop_reason()
            hung = now - last > (limits.step if made else limits.start_up) * crowding()
        found, problems = stacks.collect(processes.descendants(others), process_folder) if hung else ([], [])
        returncode = None if hung or reason else process.poll()
        if helper_process is not None:
            helper_process.kill()
            helper_process.wait()
        swept = processes.end_all(others)
        _drain(process, take)
    return TrainerEnd(
        returncode=returncode,
        seconds=time.monotonic() - started,
        start_up=start_up,
        stop_reason=reason,
        where=stacks.where(found),
        stacks=tuple(found),
        problems=tuple(problems),
        swept=swept,
    )


def crowding() -> float:
    """How many times longer than on an idle machine a program takes now, estimated from the load average."""
    return min(MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _pass_on(process: subprocess.Popen[bytes], take: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(TICK_SECONDS):
            return
    chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
    if chunk:
        take(chunk.decode("utf-8", "replace"))
    else:
        # The program closed its output and is still running.
        time.sleep(TICK_SECONDS)


def _drain(process: subprocess.Popen[bytes], take: Callable[[str], None]) -> None:
    """Read the rest of the pipe after every process that could write to it has ended."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        rest = process.stdout.read()
    except OSError as error:
        sys.stderr.write(f"the end of the program's output could not be read: {error}\n")
        return
    if rest:
        take(rest.decode("utf-8", "replace"))
