"""Runs one program and stops all its processes at the end, also if npu-matrix is killed.

An interpreter executes this file directly, so it imports only the standard library. It reads an 8-byte length
and a JSON object of that length (`ProgramRequest`) from standard input. If that pipe closes, npu-matrix has
asked to stop the program or has died, and the program is stopped. The program runs in a session of its own.
On Linux the supervisor also adopts orphaned descendants of the program, including daemons.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

LENGTH_BYTES = 8
SWEEP_SECONDS = 5.0
EXIT_CANNOT_EXECUTE = 127
MEMORY_SECONDS = 1.0
# `harness.builds.engines.container_run` prints the same message.
OUT_OF_MEMORY = "npu-matrix: the program was killed for its memory limit"
PROC = Path("/proc/self").parent
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ProgramRequest(NamedTuple):
    """The program to run, and how to stop it.

    grace: seconds between the first signal and SIGKILL. signal: the number of the first signal. alone: send
    it to the program only, not to the processes that it started. memory: limit in bytes for all its processes
    together, 0 for none.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    grace: float
    signal: int
    alone: bool
    memory: int


def main() -> NoReturn:
    """Read the request, run the program, and end with its exit status or by its signal."""
    request = _read_request(0)
    wake = _signals_as_bytes()
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A signal that arrives before the child has restored its own signal handlers must wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _execute_program(request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    status = _watch(child, wake, request)
    leftover = _kill_descendants(child)
    if status is None:
        status = _reap(child)
    if leftover:
        _print(f"[stopped {leftover} process(es) that the program left behind]")
    _exit_as(status)


def _read_request(descriptor: int) -> ProgramRequest:
    length = int.from_bytes(_read_exactly(descriptor, LENGTH_BYTES), "big")
    return ProgramRequest(**json.loads(_read_exactly(descriptor, length)))


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, size - len(data))
        if not chunk:
            sys.exit(EXIT_CANNOT_EXECUTE)
        data += chunk
    return data


def _signals_as_bytes() -> int:
    """Write a byte to a pipe for each handled signal, so that one `select` can wait for signals and input."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    return read_end


def _prctl() -> Any:
    """Linux's prctl; without it a no-op. The session of the program is then still stopped as a whole."""
    if sys.platform != "linux":
        return lambda *_: 0
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda *_: 0
    return lambda option, value: prctl(option, value, 0, 0, 0)


def _execute_program(request: ProgramRequest) -> NoReturn:
    try:
        os.setsid()
        _no_core_file()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *HANDLED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request.cwd)
        os.execvpe(request.argv[0], request.argv, request.env)  # noqa: S606
    except OSError as error:
        _print(f"cannot execute {request.argv[0]}: {error.strerror or error}")
    finally:
        os._exit(EXIT_CANNOT_EXECUTE)


def _watch(child: int, wake: int, request: ProgramRequest) -> int | None:
    """Wait until the child ends or must be killed. Returns its wait status, or None if it must be killed."""
    deadline: float | None = None
    while True:
        status = _collect(child)
        if status is not None:
            return status
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if remaining == 0.0:
            return None
        if request.memory:
            if _memory() > request.memory:
                _print(f"{OUT_OF_MEMORY} of {request.memory / 2**30:.1f} GiB")
                return None
            remaining = MEMORY_SECONDS if remaining is None else min(remaining, MEMORY_SECONDS)
        watched = [wake] if deadline is not None else [wake, 0]
        ready = select.select(watched, [], [], remaining)[0]
        received = os.read(wake, 256) if wake in ready else b""
        ended = 0 in ready and not os.read(0, 256)
        stop_requested = any(number != signal.SIGCHLD for number in received)
        if deadline is None and (ended or stop_requested):
            deadline = time.monotonic() + request.grace
            if request.alone:
                with contextlib.suppress(OSError):
                    os.kill(child, request.signal)
            else:
                _signal_all(child, request.signal)


def _collect(child: int) -> int | None:
    """Reap all ended processes, including adopted ones; returns the child's wait status if it has ended."""
    found: int | None = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def _reap(child: int) -> int:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child, 0)[1]
    return signal.SIGKILL


def _kill_descendants(child: int) -> int:
    """Kill all descendants; returns how many there were besides the child."""
    leftover = 0
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        seen = _signal_all(child, signal.SIGKILL)
        leftover = max(leftover, len(seen - {child}))
        if not seen:
            break
        time.sleep(0.005)
        for pid in seen - {child}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return leftover


def _signal_all(child: int, number: int) -> set[int]:
    """Signal all descendants and return them. Without /proc, signal the child's group and return nothing."""
    if not PROC.is_dir():
        with contextlib.suppress(OSError):
            os.killpg(child, number)
    descendants = _descendants()
    for pid in descendants:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return descendants


def _descendants() -> set[int]:
    """The living descendants of this process, from /proc; empty on systems without it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command is in parentheses, and can itself contain parentheses.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found: set[int] = set()
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending.extend(below)
    return found


def _memory() -> int:
    """Bytes of memory of all descendants. A shared page is divided by its number of users (proc(5): Pss)."""
    total = 0
    for pid in _descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (PROC / str(pid) / "smaps_rollup").read_text("ascii", errors="replace")
            total += int(text.partition("\nPss:")[2].split(maxsplit=1)[0]) << 10
    return total


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, f"{text}\n".encode())


def _exit_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _die_by_signal(-code)
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


def _no_core_file() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_by_signal(number: int) -> None:
    """End this process by the same signal as the program, without a second core file."""
    _no_core_file()
    with contextlib.suppress(OSError, ValueError):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
