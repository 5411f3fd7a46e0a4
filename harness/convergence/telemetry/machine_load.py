"""Identifies the machine of a training and measures how much processor time other processes use.

In-cell module.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.convergence.telemetry.training_records import MachineLoad
from harness.digest import digest_json

_PROCESSORS = Path("/proc/cpuinfo")
_TIMES, _PROCESSES = Path("/proc/stat"), Path("/proc/self").parent
_TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 1.0
# Fields of the line "cpu" (man proc_stat) for busy and idle time. User time includes guests; steal is time
# that the hypervisor gave to other virtual machines.
_BUSY, _IDLE = (0, 1, 2, 5, 6, 7), (3, 4)


def machine_load() -> MachineLoad:
    """This machine, identified by a digest that does not reveal its name, and its load in the last minute."""
    processors = os.cpu_count() or 1
    return MachineLoad(
        id=digest_json([platform.node(), platform.machine(), _model(), processors])[:16],
        load=round(os.getloadavg()[0] / processors, 3),
    )


def largest_load(hosts: Sequence[MachineLoad]) -> MachineLoad:
    """The load of several runs as one: the largest load, and the largest share of others if all are known."""
    shares = [host.others for host in hosts]
    known = [share for share in shares if share is not None]
    return replace(
        hosts[0],
        load=max(host.load for host in hosts),
        others=max(known) if len(known) == len(shares) else None,
    )


class OtherProcesses:
    """Measures how much processor time other processes than this one and its descendants use from now on.

    The time of a descendant whose parent did not wait for it is the time that `look` last recorded.
    """

    def __init__(self) -> None:
        self._start = _used()
        self._below: dict[tuple[int, int], float] = {}
        self._looked = -LOOK_SECONDS

    def look(self) -> None:
        """Record the processor times of this process's descendants. Can be called at any frequency."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._below.update(_below())

    def share(self) -> float | None:
        """The share of processor time that other processes used since the start, 0 to 1; None if unknown."""
        now = _used()
        if now is None or self._start is None:
            return None
        time_of_all, busy, own, waited_for = (
            late - early for late, early in zip(now, self._start, strict=True)
        )
        mine = own + max(waited_for, sum(self._below.values()))
        return round(min(1.0, max(0.0, (busy - mine) / time_of_all)), 3) if time_of_all > 0 else None


def _below() -> dict[tuple[int, int], float]:
    """Processor seconds of the running descendants of this process, by process id and start time."""
    parents, found = {}, {}
    for entry in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Fields as in man proc_pid_stat. The command is in parentheses and may contain parentheses
            # itself.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            process = int(entry.parent.name)
            parents[process] = int(fields[1])
            found[process] = (int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS)
    below: set[int] = set()
    nearer = {os.getpid()}
    while nearer:
        nearer = {process for process, parent in parents.items() if parent in nearer} - below
        below |= nearer
    return {(process, found[process][0]): found[process][1] for process in below}


def _used() -> tuple[float, float, float, float] | None:
    """Processor seconds: in total, busy, of this process, and of descendants that it waited for."""
    try:
        fields = _TIMES.read_text(encoding="ascii").splitlines()[0].split()[1:]
        seconds = [int(field) / _TICKS for field in fields]
        busy, own = sum(seconds[place] for place in _BUSY), os.times()
        return busy + sum(seconds[place] for place in _IDLE), busy, sum(own[:2]), sum(own[2:4])
    except (OSError, ValueError, IndexError):
        return None


def _model() -> str:
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
