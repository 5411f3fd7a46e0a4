"""The processes below this one, by /proc: finding them, and ending them all. Linux only. In-cell module."""

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
    """A living process; command is what it says of itself, which Ray's workers set to their actor's name."""

    pid: int
    command: str


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind, so that it can be found and ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(spare: frozenset[int] = frozenset()) -> list[Process]:
    """All living processes below this one but for `spare` and what is below those; by number."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command stands in parentheses and may itself contain any.
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
    """Kill every descendant but for `spare` until there is none; how many processes there were."""
    deadline = time.monotonic() + SWEEP_SECONDS
    seen: set[int] = set()
    while time.monotonic() < deadline:
        there = {process.pid for process in descendants(spare)}
        seen |= there
        for pid in there:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not there and not _unreaped(seen):
            break
        time.sleep(0.02)
    return len(seen)


def _unreaped(pids: set[int]) -> set[int]:
    """Reap what has ended; those of `pids` that are still there, as processes or as what is left of them."""
    for pid in pids:
        # Not a child of this process, or somebody else has waited for it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return {pid for pid in pids if (_PROC / str(pid)).exists()}


def _command(pid: int) -> str:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()
