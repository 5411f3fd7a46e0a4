"""The processes of a session: their memory, and how to end all of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_SESSION_FIELD = 3
#: Of the memory that is left, what a process that runs alone may use.
_SHARE = 0.8
_CONTAINER = Path("/sys/fs/cgroup")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def session_members(session: int) -> Iterator[int]:
    """The processes of a session, also those whose parent has ended."""
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and _session_of(int(entry.name)) == session:
            yield int(entry.name)


def memory_of_session(session: int) -> int:
    """The resident memory of its processes in bytes. Memory that they share counts several times."""
    return sum(_resident(process) for process in session_members(session))


def memory_left(proc: Path = PROC, container: Path = _CONTAINER) -> int:
    """The memory in bytes that a process may use beside those that run now; 0 if it is not known."""
    try:
        lines = (proc / "meminfo").read_text(encoding="utf-8").splitlines()
        left = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
    with contextlib.suppress(OSError, ValueError):
        limit, used = (
            int((container / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current")
        )
        left = min(left, limit - used)
    return int(left * _SHARE)


def end_session(session: int) -> None:
    """Kill all processes of a session that this process has started."""
    if session == os.getsid(0):
        return
    for process in [*session_members(session)]:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _session_of(process: int) -> int:
    try:
        text = (PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return -1
    # The name of the program, in parentheses, can contain spaces.
    words = text.rpartition(")")[2].split()
    return int(words[_SESSION_FIELD]) if len(words) > _SESSION_FIELD else -1


def _resident(process: int) -> int:
    try:
        return int((PROC / str(process) / "statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
