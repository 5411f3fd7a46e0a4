"""What this host can run, what not, why, and the fix."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.devices.host import HostReport, engine_answers
from harness.devices.leases import Held


class Health(str, enum.Enum):
    """`ok`: works. `limited`: some cells cannot run here. `broken`: the default profile cannot run."""

    OK = "ok"
    LIMITED = "limited"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    topic: str
    health: Health
    what: str
    fix: str = ""


def examine(
    host: HostReport,
    *,
    zig: bool,
    free_bytes: int,
    needed_bytes: int,
    answers: Callable[[str], bool] = engine_answers,
    leases: Sequence[Held] = (),
) -> tuple[Finding, ...]:
    """Findings in the order people read them.

    zig: the ziglang wheel is installed. answers: whether a container engine that is installed can be used.
    leases: who has cards of this host, and who waits for some.
    """
    return (
        _simulated(host, zig=zig),
        _npu(host),
        *_leases(leases),
        _engines(host, answers),
        _disk(free_bytes, needed_bytes),
        _git(host),
    )


def _simulated(host: HostReport, *, zig: bool) -> Finding:
    if host.compiler or zig:
        compiler = host.compiler or "the ziglang wheel"
        return Finding(topic="simulated device", health=Health.OK, what=f"can be built with {compiler}")
    return Finding(
        topic="simulated device",
        health=Health.BROKEN,
        what="no C compiler, so the simulated CANN runtime cannot be built",
        fix=f"install gcc or clang, or `{sys.executable} -m pip install ziglang`",
    )


def _npu(host: HostReport) -> Finding:
    if host.npu is None:
        if host.npu_error:
            return Finding(
                topic="NPU",
                health=Health.LIMITED,
                what=host.npu_error,
                fix="check the driver with `npu-smi info`",
            )
        return Finding(topic="NPU", health=Health.LIMITED, what="none found; hardware cells are not run here")
    if host.missing_nodes:
        missing = ", ".join(f"/dev/{name}" for name in host.missing_nodes)
        return Finding(
            topic="NPU",
            health=Health.LIMITED,
            what=f"cards are there but {missing} is missing",
            fix="pass the manager nodes into the container, or reload the driver",
        )
    usable, total = len(host.usable_chips), len(host.npu.chips)
    soc = host.soc or "unknown SoC"
    cann = host.cann or "not installed"
    what = f"{usable} of {total} chips usable, {soc}, driver {host.npu.version}, CANN {cann}"
    if usable == total and host.soc:
        return Finding(topic="NPU", health=Health.OK, what=what)
    unhealthy = [f"{chip.index} ({chip.health})" for chip in host.npu.chips if not chip.healthy]
    held = [f"{process.card}/{process.chip} by pid {process.pid}" for process in host.npu.processes]
    nodeless = [str(chip.index) for chip in host.npu.chips if chip.index not in host.davinci]
    name = host.npu.chips[0].name if host.npu.chips else ""
    parts = [
        f"unhealthy: {', '.join(unhealthy)}" if unhealthy else "",
        f"in use: {', '.join(held)}" if held else "",
        f"no /dev/davinci node: {', '.join(nodeless)}" if nodeless else "",
        f"npu-smi calls them {name!r}" if not host.soc else "",
    ]
    return Finding(
        topic="NPU", health=Health.LIMITED, what=what, fix="; ".join(part for part in parts if part)
    )


def _leases(leases: Sequence[Held]) -> Iterator[Finding]:
    for one in leases:
        who = f"{one.what} ({one.user}, pid {one.pid})"
        what = f"waits for {one.count}: {who}" if one.card is None else f"{one.card} leased: {who}"
        yield Finding(topic="cards", health=Health.OK, what=what)


def _engines(host: HostReport, answers: Callable[[str], bool]) -> Finding:
    usable = [name for name in host.container_engines if answers(name)]
    if usable:
        return Finding(topic="containers", health=Health.OK, what=", ".join(usable))
    if host.container_engines:
        return Finding(
            topic="containers",
            health=Health.LIMITED,
            what=f"{', '.join(host.container_engines)} installed, but it cannot be used from here",
            fix=f"see what `{host.container_engines[0]} info` says; cells are virtual environments without",
        )
    return Finding(
        topic="containers",
        health=Health.LIMITED,
        what="neither docker nor podman; cells are built as virtual environments",
    )


def _disk(free_bytes: int, needed_bytes: int) -> Finding:
    free, needed = free_bytes / 2**30, needed_bytes / 2**30
    if free_bytes >= needed_bytes:
        return Finding(topic="disk", health=Health.OK, what=f"{free:.0f} GiB free")
    return Finding(
        topic="disk",
        health=Health.BROKEN,
        what=f"{free:.1f} GiB free, the default profile needs {needed:.0f} GiB",
        fix="free some, or put `--state` and the cache on another disk",
    )


def _git(host: HostReport) -> Finding:
    if host.git:
        return Finding(topic="git", health=Health.OK, what=host.git)
    return Finding(
        topic="git",
        health=Health.LIMITED,
        what="not found; upstream histories cannot be read",
        fix="install git",
    )
