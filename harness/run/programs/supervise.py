"""Runs one program and leaves nothing of it behind, whatever happens to the program or to the harness.

Executed as a file by a bare interpreter, so it imports only the standard library. It reads one JSON object
with its length in front from standard input (argv, env, cwd and these), then watches that pipe: its end
means that the harness wants the program stopped, or is itself dead, kill -9 included. `grace` are the
seconds that the program has to end. The program gets a session of its own. On Linux the supervisor also
adopts whatever the program's children leave behind, daemons included. `signal` is what it is stopped with
first, with `alone` without what it started; `memory` is a limit in bytes for all of its processes together,
0 for none.
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
from typing import Any, NoReturn

LENGTH_BYTES = 8
SWEEP_SECONDS = 5.0
EXIT_CANNOT_EXECUTE = 127
MEMORY_SECONDS = 1.0
# What the container engine's program says too.
OUT_OF_MEMORY = "npu-matrix: the program was killed for its memory limit"
PROC = Path("/proc/self").parent
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> NoReturn:
    """Read the order, run it, and end as the program ended: same exit code, same signal."""
    order = _read_order(0)
    wake = _signals_as_bytes()
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A stop that comes before the child has its own signals back waits there, and is told to nobody else.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _execute_program(order)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    status = _watch(child, wake, order)
    left = _sweep(child)
    if status is None:
        status = _reap(child)
    if left:
        _print(f"[stopped {left} process(es) that the program left behind]")
    _exit_as(status)


def _read_order(descriptor: int) -> dict[str, Any]:
    length = int.from_bytes(_read_exactly(descriptor, LENGTH_BYTES), "big")
    order: dict[str, Any] = json.loads(_read_exactly(descriptor, length))
    return order


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(descriptor, size - len(data))
        if not chunk:
            sys.exit(EXIT_CANNOT_EXECUTE)
        data += chunk
    return data


def _signals_as_bytes() -> int:
    """Every signal of interest becomes a byte in a pipe, so that one `select` waits for all there is."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    return read_end


def _prctl() -> Any:
    """Linux's prctl; elsewhere, and without ctypes, nothing: the session is still stopped as a whole."""
    if sys.platform != "linux":
        return lambda *_: 0
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda *_: 0
    return lambda option, value: prctl(option, value, 0, 0, 0)


def _execute_program(order: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        _no_core_file()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *HANDLED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except OSError as error:
        _print(f"cannot execute {order['argv'][0]}: {error.strerror or error}")
    finally:
        os._exit(EXIT_CANNOT_EXECUTE)


def _watch(child: int, wake: int, order: dict[str, Any]) -> int | None:
    """The child's wait status, or None if it must be killed. A stop sends the configured signal first."""
    deadline: float | None = None
    limit = int(order["memory"])
    while True:
        status = _collect(child)
        if status is not None:
            return status
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if remaining == 0.0:
            return None
        if limit:
            if _memory() > limit:
                _print(f"{OUT_OF_MEMORY} of {limit / 2**30:.1f} GiB")
                return None
            remaining = MEMORY_SECONDS if remaining is None else min(remaining, MEMORY_SECONDS)
        watched = [wake] if deadline is not None else [wake, 0]
        ready = select.select(watched, [], [], remaining)[0]
        received = os.read(wake, 256) if wake in ready else b""
        ended = 0 in ready and not os.read(0, 256)
        stop_requested = any(number != signal.SIGCHLD for number in received)
        if deadline is None and (ended or stop_requested):
            deadline = time.monotonic() + float(order["grace"])
            if order["alone"]:
                with contextlib.suppress(OSError):
                    os.kill(child, int(order["signal"]))
            else:
                _signal_all(child, int(order["signal"]))


def _collect(child: int) -> int | None:
    """Reap everything that has ended, adopted processes too; the child's status when it was among them."""
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


def _sweep(child: int) -> int:
    """Kill what is left until nothing is; returns how many processes other than the child there were."""
    left = 0
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        seen = _signal_all(child, signal.SIGKILL)
        left = max(left, len(seen - {child}))
        if not seen:
            break
        time.sleep(0.005)
        for pid in seen - {child}:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return left


def _signal_all(child: int, number: int) -> set[int]:
    """Signal every descendant and return them; without /proc, the child's group, which cannot be listed."""
    if not PROC.is_dir():
        with contextlib.suppress(OSError):
            os.killpg(child, number)
    descendants = _descendants()
    for pid in descendants:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return descendants


def _descendants() -> set[int]:
    """Living processes below this one, by /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command stands in parentheses and may itself contain any.
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
    """Bytes that the descendants hold, shared pages divided among those that share them (proc(5): Pss)."""
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
    """End by the program's own signal, without a second core file."""
    _no_core_file()
    with contextlib.suppress(OSError, ValueError):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
