"""Whose clock a training's times are: the machine, and how much of it others used. In-cell module."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.digest import digest_json

_PROCESSORS = Path("/proc/cpuinfo")
_TIMES = Path("/proc/stat")
# Fields of the line "cpu" (man proc_stat): what processors did when they were busy, and when not. Guests'
# time is part of user's; steal is what a hypervisor gave to others.
_BUSY, _IDLE = (0, 1, 2, 5, 6, 7), (3, 4)


def host_facts() -> dict[str, Any]:
    """`id`: a digest that only runs on this machine share, without its name in it; `load`: runnable processes
    per processor in the last minute."""
    processors = os.cpu_count() or 1
    return {
        "id": digest_json([platform.node(), platform.machine(), _model(), processors])[:16],
        "load": round(os.getloadavg()[0] / processors, 3),
    }


def together(hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of several runs' host as one: the largest load, the largest share of others where known."""
    shares = [host.get("others") for host in hosts]
    known = [share for share in shares if share is not None]
    return {
        "id": hosts[0]["id"],
        "load": max(host["load"] for host in hosts),
        "others": max(known) if len(known) == len(shares) else None,
    }


class Others:
    """How much of the machine is used from now on by others than this process and those it has waited for."""

    def __init__(self) -> None:
        self._start = _used()

    def share(self) -> float | None:
        """Their share of all processors' time since this was made, 0 to 1; None where nothing tells."""
        now = _used()
        if now is None or self._start is None:
            return None
        all_of_it, busy, own = (late - early for late, early in zip(now, self._start, strict=True))
        return round(min(1.0, max(0.0, (busy - own) / all_of_it)), 3) if all_of_it > 0 else None


def _used() -> tuple[float, float, float] | None:
    """Seconds of all processors, of those the busy ones, and of those this process's own."""
    try:
        fields = _TIMES.read_text(encoding="ascii").splitlines()[0].split()[1:]
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
        busy = sum(ticks[place] for place in _BUSY)
        return busy + sum(ticks[place] for place in _IDLE), busy, sum(os.times()[:4])
    except (OSError, ValueError, IndexError):
        return None


def _model() -> str:
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
