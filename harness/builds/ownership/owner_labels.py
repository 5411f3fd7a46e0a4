"""Labels on containers, networks and images: their owner, their purpose, and when they expire."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "npu-matrix."
RUN, CELL, TASK, KEY = (PREFIX + name for name in ("run", "cell", "task", "key"))
OWNER, EXPIRES, PARENT = (PREFIX + name for name in ("owner", "expires", "parent"))
BOOT_ID = "sys/kernel/random/boot_id"
START_TIME = 19  # index of `starttime` after the command in /proc/PID/stat (proc(5): field 22)


@dataclass(frozen=True, kw_only=True)
class ProcessOwner:
    """The identity of a process, which differs from that of any other process with the same PID.

    boot: id of the host's boot. space: PID namespace. started: start time in clock ticks since the boot.
    """

    host: str
    boot: str
    space: str
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.host}/{self.boot}/{self.space}/{self.pid}/{self.started}"

    @classmethod
    def parse(cls, text: str) -> ProcessOwner | None:
        """The owner that a label contains; None when it has another form."""
        parts = text.split("/")
        if len(parts) != 5 or not (parts[3].isdecimal() and parts[4].isdecimal()):
            return None
        return cls(host=parts[0], boot=parts[1], space=parts[2], pid=int(parts[3]), started=int(parts[4]))


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """The processes of this host. proc: the process file system."""

    proc: Path = Path("/proc/self").parent
    host: str = ""

    def owner(self, pid: int) -> ProcessOwner | None:
        """The identity of a living process, or None."""
        started = self._start(pid)
        if started is None:
            return None
        return ProcessOwner(
            host=self.host or socket.gethostname(),
            boot=self._read(BOOT_ID),
            space=self._space(),
            pid=pid,
            started=started,
        )

    def state(self, owner: ProcessOwner) -> str:
        """`alive`, `dead`, or why this host cannot know."""
        if owner.host != (self.host or socket.gethostname()):
            return f"its owner is on {owner.host}"
        if owner.boot != self._read(BOOT_ID):
            return "dead"
        if owner.space != self._space():
            return "its owner is in another PID namespace"
        return "alive" if self._start(owner.pid) == owner.started else "dead"

    def _start(self, pid: int) -> int | None:
        try:
            text = (self.proc / str(pid) / "stat").read_text("utf-8", errors="replace")
        except OSError:
            return None
        state, *fields = text.rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[START_TIME - 1])

    def _read(self, name: str) -> str:
        try:
            return (self.proc / name).read_text("ascii").strip()
        except OSError:
            return ""

    def _space(self) -> str:
        try:
            return str((self.proc / "self/ns/pid").stat().st_ino)
        except OSError:
            return ""


def this_process() -> ProcessOwner:
    """The identity of this process; without /proc, an identity that is never considered dead."""
    owner = ProcessView().owner(os.getpid())
    return owner or ProcessOwner(host=socket.gethostname(), boot="", space="", pid=os.getpid(), started=0)


def make_labels(
    *, owner: ProcessOwner, expires: float, key: str, run: str = "", cell: str = "", task: str = ""
) -> dict[str, str]:
    """The labels of a resource. expires: Unix time after which it may be removed whoever owns it."""
    labels = {OWNER: str(owner), EXPIRES: str(int(expires)), KEY: key, RUN: run, CELL: cell, TASK: task}
    return {name: value for name, value in labels.items() if value}


def has_owner_labels(labels: Mapping[str, str]) -> bool:
    """Whether npu-matrix created the resource with these labels."""
    return OWNER in labels and KEY in labels


def is_orphaned(labels: Mapping[str, str], view: ProcessView, now: float) -> tuple[bool, str]:
    """Whether a container or network with these labels can be removed, and why or why not.

    It can if its owner is dead, or if it has expired and its owner cannot be checked from this host.
    """
    owner = ProcessOwner.parse(labels.get(OWNER, ""))
    if owner is None:
        return False, "its owner cannot be read"
    state = view.state(owner)
    if state == "dead":
        return True, f"its owner, process {owner.pid}, is dead"
    if state == "alive":
        return False, f"its owner, process {owner.pid}, is alive"
    until = expiry(labels)
    if until is not None and until < now:
        return True, f"{state}, and it expired"
    return False, state


def expiry(labels: Mapping[str, str]) -> float | None:
    """When the resource may be removed whoever owns it; None when the labels do not say."""
    text = labels.get(EXPIRES, "")
    return float(text) if text.isdecimal() else None
