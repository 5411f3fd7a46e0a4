"""Finds and kills the descendants of this process, read from /proc. Linux only. In-cell module."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 10.0
_PROC = Path("/proc/self").parent


@dataclass(frozen=True, kw_only=True)
class Process:
    """A running process. command: its command line, which Ray's workers set to the name of their actor."""

    pid: int
    command: str


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that they can be found and killed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(spare: frozenset[int] = frozenset()) -> list[Process]:
    """All running descendants except `spare` and their descendants, ordered by process id."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command is in parentheses and may contain parentheses itself.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children[int(parent)].append(int(entry.parent.name))
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        below = [pid for pid in children[pending.pop()] if pid not in spare]
        found += below
        pending += below
    return [Process(pid=pid, command=_command(pid)) for pid in sorted(found)]


def end_all(spare: frozenset[int] = frozenset()) -> int:
    """Kill all descendants except `spare`, also new ones, until none is left. Returns how many there were."""
    deadline = time.monotonic() + SWEEP_SECONDS
    seen: set[int] = set()
    while time.monotonic() < deadline:
        running = {process.pid for process in descendants(spare)}
        seen |= running
        for pid in running:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not running and not _unreaped(seen):
            break
        time.sleep(0.02)
    return len(seen)


def _unreaped(pids: set[int]) -> set[int]:
    """Reap children that have ended. Returns those of `pids` that still exist, also as zombies."""
    for pid in pids:
        # ChildProcessError: the process is not a child, or another thread has already waited for it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return {pid for pid in pids if (_PROC / str(pid)).exists()}


def _command(pid: int) -> str:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()
