"""What this host can run, what not, why, and the fix."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.devices.host import HostReport, engine_problem
from harness.devices.leases import Held
from harness.devices.network import CardNetwork
from harness.devices.soc import driver_misfit

#: What Docker gives a container that does not ask for more (`docker run --shm-size`).
DOCKER_SHM_BYTES = 64 << 20


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
    problem_of: Callable[[str], str] = engine_problem,
    leases: Sequence[Held] = (),
    network: CardNetwork | None = None,
) -> tuple[Finding, ...]:
    """Findings in the order people read them.

    zig: the ziglang wheel is installed. problem_of: why an installed container engine cannot be used, or "".
    leases: who has cards of this host, and who waits for some. network: that of its cards, if it has any.
    """
    return (
        _simulated(host, zig=zig),
        _npu(host),
        *_driver(host),
        *_network(network),
        *_leases(leases),
        _engines(host, problem_of),
        *_passing(host),
        *_shared_memory(host),
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
            driver = f" (driver {host.driver})" if host.driver else ""
            return Finding(
                topic="NPU",
                health=Health.LIMITED,
                what=f"{host.npu_error}{driver}",
                fix=host.npu_fix or "check the driver with `npu-smi info`",
            )
        return Finding(topic="NPU", health=Health.LIMITED, what="none found; hardware cells are not run here")
    if host.missing_nodes:
        missing = ", ".join(f"/dev/{name}" for name in host.missing_nodes)
        cards = "cards are there" if host.npu.chips else "npu-smi runs and tells of no card it could read"
        return Finding(
            topic="NPU",
            health=Health.LIMITED,
            what=f"{cards}, but {missing} is missing",
            fix="pass the manager nodes into the container, or reload the driver",
        )
    usable, total = len(host.usable_chips), len(host.npu.chips)
    soc = host.soc or "unknown SoC"
    cann = host.cann or "not installed"
    what = f"{usable} of {total} chips usable, {soc}, driver {host.npu.version}, CANN {cann}"
    problems = _card_problems(host)
    if not problems:
        return Finding(topic="NPU", health=Health.OK, what=what)
    told = "; ".join(problem for problem, _ in problems)
    fixes = dict.fromkeys(fix for _, fix in problems if fix)
    return Finding(topic="NPU", health=Health.LIMITED, what=f"{what}; {told}", fix="; ".join(fixes))


def _card_problems(host: HostReport) -> list[tuple[str, str]]:
    """What is wrong with which cards, and what helps; `host.npu` is there."""
    npu = host.npu
    if npu is None:
        return []
    unhealthy = [f"{chip.index} ({chip.health})" for chip in npu.chips if not chip.healthy]
    held = [f"{process.card}/{process.chip} by pid {process.pid}" for process in npu.processes]
    nodeless = [str(chip.index) for chip in npu.chips if chip.index not in host.davinci]
    silent = [str(card) for card in npu.silent]
    found = []
    if not npu.chips and not silent:
        found.append(("npu-smi lists no card", "see whether `lspci` shows them, then reload the driver"))
    if unhealthy:
        fix = "see `npu-smi info -t health -i CARD`; reset the card, or leave it out"
        found.append((f"unhealthy: {', '.join(unhealthy)}", fix))
    if silent:
        fix = "see `dmesg` for cards that left the bus; reseat or reboot"
        found.append((f"listed without details: card {', '.join(silent)}", fix))
    if held:
        found.append((f"in use: {', '.join(held)}", "wait for these processes, or end those that are yours"))
    if nodeless:
        fix = "pass the nodes into the container (--device), or reload the driver"
        found.append((f"no /dev/davinci node: {', '.join(nodeless)}", fix))
    if npu.chips and not host.soc:
        found.append(
            (f"npu-smi calls them {npu.chips[0].name!r}", "name this chip in an issue of npu-matrix")
        )
    return found


def _driver(host: HostReport) -> Iterator[Finding]:
    """The installed CANN against the driver; planning compares that of each cell."""
    misfit = driver_misfit(host.cann, host.driver) if host.cann and host.driver else ""
    if misfit:
        yield Finding(
            topic="driver",
            health=Health.LIMITED,
            what=misfit,
            fix="update the driver and its firmware, or take cells with an older CANN",
        )


def _passing(host: HostReport) -> Iterator[Finding]:
    if host.passing is None or host.npu is None:
        return
    way = "Ascend Docker Runtime is registered; " if host.passing.runtime else ""
    if host.passing.missing:
        missing = ", ".join(host.passing.missing)
        yield Finding(
            topic="cards in containers",
            health=Health.LIMITED,
            what=f"{way}the driver's {missing} cannot be mounted: not on this host",
            fix="install the driver for all users; inside a container, mount it from the host",
        )
    else:
        yield Finding(
            topic="cards in containers",
            health=Health.OK,
            what=f"{way}nodes and driver files are passed one by one",
        )


def _network(network: CardNetwork | None) -> Iterator[Finding]:
    if network is None:
        return
    topic, fix = "HCCL network", "cells on one host do without; set addresses with `hccn_tool -i CARD -ip -s`"
    wrong = [f"{card} ({problem})" for card, problem in network.links.items() if problem]
    if network.error:
        yield Finding(topic=topic, health=Health.LIMITED, what=network.error, fix=fix)
    elif wrong:
        what = (
            f"{len(network.up)} of {len(network.links)} cards can reach other hosts; not: {', '.join(wrong)}"
        )
        yield Finding(topic=topic, health=Health.LIMITED, what=what, fix=fix)
    else:
        yield Finding(topic=topic, health=Health.OK, what=f"{len(network.up)} cards can reach other hosts")


def _leases(leases: Sequence[Held]) -> Iterator[Finding]:
    for one in leases:
        who = f"{one.what} ({one.user}, pid {one.pid})"
        what = f"waits for {one.count}: {who}" if one.card is None else f"{one.card} leased: {who}"
        yield Finding(topic="cards", health=Health.OK, what=what)


def _engines(host: HostReport, problem_of: Callable[[str], str]) -> Finding:
    problems = {name: problem_of(name) for name in host.container_engines}
    usable = [name for name, problem in problems.items() if not problem]
    if usable:
        return Finding(topic="containers", health=Health.OK, what=", ".join(usable))
    if problems:
        told = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        return Finding(
            topic="containers",
            health=Health.LIMITED,
            what=f"installed, but it cannot be used from here: {told}",
            fix=f"see what `{host.container_engines[0]} info` says; cells are virtual environments without",
        )
    return Finding(
        topic="containers",
        health=Health.LIMITED,
        what="neither docker nor podman; cells are built as virtual environments",
    )


def _shared_memory(host: HostReport) -> Iterator[Finding]:
    if host.shm_bytes is not None and host.shm_bytes <= DOCKER_SHM_BYTES:
        yield Finding(
            topic="shared memory",
            health=Health.LIMITED,
            what=f"{host.shm_bytes / 2**20:.0f} MiB: one loader of torch with workers needs more",
            fix="start this container with --shm-size 8g",
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
