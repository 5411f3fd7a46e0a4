"""Runs a program, watches that it gets on, and leaves nothing of it behind. Linux only. In-cell module."""

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
# On a machine with three runnable processes per processor everything takes three times as long; more than
# that is not waited for.
MOST_CROWDED = 3.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds a program may take to its first step, and from step to step, on a machine of its own."""

    start_up: float
    step: float


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a program ended. returncode: None when it was killed because it did not get on, or was hopeless.

    hopeless: why going on made no sense, or "".
    seconds: wall time; start_up: until the first step, None without one. swept: processes it left behind, or
    that were killed with it.
    """

    returncode: int | None
    seconds: float
    start_up: float | None
    hopeless: str = ""
    where: str = ""
    stacks: tuple[ThreadStack, ...] = ()
    problems: tuple[str, ...] = ()
    swept: int = 0


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    process_folder: Path,
    take: Callable[[str], None],
    steps: Callable[[], int],
    limits: Limits,
    hopeless: Callable[[], str] = lambda: "",
    beside: Sequence[str] = (),
) -> Ending:
    """Run `argv`; its merged output goes to `take` as it comes, `steps()` says how many steps it has made.

    beside: a program that serves it and is ended with it.

    A program that makes none for too long is killed with everything it started, after its stacks were
    collected. So is one of which `hopeless()` says after a step why it need not go on.
    """
    processes.adopt_orphans()
    others = frozenset(process.pid for process in processes.descendants())
    started = time.monotonic()
    servant = subprocess.Popen(beside, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL) if beside else None
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
                reason = hopeless()
            hung = now - last > (limits.step if made else limits.start_up) * crowding()
        found, problems = _stacks(process_folder, others) if hung else ([], [])
        returncode = None if hung or reason else process.poll()
        if servant is not None:
            servant.kill()
            servant.wait()
        swept = processes.end_all(others)
        _drain(process, take)
    return Ending(
        returncode=returncode,
        seconds=time.monotonic() - started,
        start_up=start_up,
        hopeless=reason,
        where=stacks.where(found),
        stacks=tuple(found),
        problems=tuple(problems),
        swept=swept,
    )


def crowding() -> float:
    """How many times longer than alone a program takes here now, by the load of the last minute."""
    return min(MOST_CROWDED, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def _stacks(folder: Path, others: frozenset[int]) -> tuple[list[ThreadStack], list[str]]:
    return stacks.collect(processes.descendants(others), folder)


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
        # The output is closed before the program has ended.
        time.sleep(TICK_SECONDS)


def _drain(process: subprocess.Popen[bytes], take: Callable[[str], None]) -> None:
    """What stands in the pipe; everything that could write to it is gone."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    try:
        rest = process.stdout.read()
    except OSError as error:
        sys.stderr.write(f"the end of the output is lost: {error}\n")
        return
    if rest:
        take(rest.decode("utf-8", "replace"))
