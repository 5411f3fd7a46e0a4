"""What this host can and cannot run, why, and how to fix it: the findings of `doctor`."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.devices.cards.card_leases import CardLease
from harness.devices.host.card_network import CardNetwork
from harness.devices.host.container_service import EngineState, query_engine, storage_remedy
from harness.devices.host.inventory import HostReport
from harness.devices.host.soc import driver_misfit

#: What Docker gives a container that does not ask for more (`docker run --shm-size`).
DOCKER_SHM_BYTES = 64 << 20
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class DiskSpace:
    """What is free, and what is needed, in bytes.

    free_on: on the disk of a folder; images: for those of the default profile; engine: what cells are built
    with.
    """

    free: int
    needed: int
    free_on: Callable[[Path], int]
    images: int
    engine: str = "venv"


class Health(str, enum.Enum):
    """`ok`: works. `limited`: some cells cannot run here. `broken`: the default profile cannot run."""

    OK = "ok"
    LIMITED = "limited"
    BROKEN = "broken"


@dataclass(frozen=True, kw_only=True)
class HostFinding:
    """One line of the doctor's report."""

    topic: str
    health: Health
    what: str
    fix: str = ""


def examine_host(
    host: HostReport,
    *,
    zig: bool,
    disk: DiskSpace,
    engine_of: Callable[[str], EngineState] = query_engine,
    leases: Sequence[CardLease] = (),
    network: CardNetwork | None = None,
) -> tuple[HostFinding, ...]:
    """Findings in the order people read them.

    zig: the ziglang wheel is installed. engine_of: asks an installed container engine.
    leases: who has cards of this host, and who waits for some. network: that of its cards, if it has any.
    """
    engines = [engine_of(name) for name in host.container_engines]
    return (
        _simulated(host, zig=zig),
        _npu(host),
        *_driver(host),
        *_network(network),
        *_leases(leases),
        _engines(engines),
        *_image_storage(engines, disk),
        *_passthrough(host),
        *_shared_memory(host),
        _disk(disk),
        _git(host),
    )


def _simulated(host: HostReport, *, zig: bool) -> HostFinding:
    if host.compiler or zig:
        compiler = host.compiler or "the ziglang wheel"
        return HostFinding(topic="simulated device", health=Health.OK, what=f"can be built with {compiler}")
    return HostFinding(
        topic="simulated device",
        health=Health.BROKEN,
        what="no C compiler, so the simulated CANN runtime cannot be built",
        fix=f"install gcc or clang, or `{sys.executable} -m pip install ziglang`",
    )


def _npu(host: HostReport) -> HostFinding:
    if host.npu is None:
        if host.npu_error:
            driver = f" (driver {host.driver})" if host.driver else ""
            return HostFinding(
                topic="NPU",
                health=Health.LIMITED,
                what=f"{host.npu_error}{driver}",
                fix=host.npu_fix or "check the driver with `npu-smi info`",
            )
        return HostFinding(
            topic="NPU", health=Health.LIMITED, what="none found; hardware cells are not run here"
        )
    if host.missing_nodes:
        missing = ", ".join(f"/dev/{name}" for name in host.missing_nodes)
        cards = "cards are present" if host.npu.chips else "npu-smi runs but reports no readable card"
        return HostFinding(
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
        return HostFinding(topic="NPU", health=Health.OK, what=what)
    details = "; ".join(problem for problem, _ in problems)
    fixes = dict.fromkeys(fix for _, fix in problems if fix)
    return HostFinding(topic="NPU", health=Health.LIMITED, what=f"{what}; {details}", fix="; ".join(fixes))


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
        fix = "run `npu-smi info -t health -i CARD`; reset the card or do not use it"
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


def _driver(host: HostReport) -> Iterator[HostFinding]:
    """The installed CANN against the driver; planning compares that of each cell."""
    misfit = driver_misfit(host.cann, host.driver) if host.cann and host.driver else ""
    if misfit:
        yield HostFinding(
            topic="driver",
            health=Health.LIMITED,
            what=misfit,
            fix="update the driver and its firmware, or use cells with an older CANN",
        )


def _passthrough(host: HostReport) -> Iterator[HostFinding]:
    if host.passthrough is None or host.npu is None:
        return
    way = "Ascend Docker Runtime is registered; " if host.passthrough.runtime else ""
    if host.passthrough.missing:
        missing = ", ".join(host.passthrough.missing)
        yield HostFinding(
            topic="cards in containers",
            health=Health.LIMITED,
            what=f"{way}the driver's {missing} cannot be mounted: not on this host",
            fix="install the driver for all users; inside a container, mount it from the host",
        )
    else:
        yield HostFinding(
            topic="cards in containers",
            health=Health.OK,
            what=f"{way}nodes and driver files are passed one by one",
        )


def _network(network: CardNetwork | None) -> Iterator[HostFinding]:
    if network is None:
        return
    topic, fix = "HCCL network", "cells on one host do without; set addresses with `hccn_tool -i CARD -ip -s`"
    wrong = [f"{card} ({problem})" for card, problem in network.links.items() if problem]
    if network.error:
        yield HostFinding(topic=topic, health=Health.LIMITED, what=network.error, fix=fix)
    elif wrong:
        what = (
            f"{len(network.up)} of {len(network.links)} cards can reach other hosts; not: {', '.join(wrong)}"
        )
        yield HostFinding(topic=topic, health=Health.LIMITED, what=what, fix=fix)
    else:
        yield HostFinding(
            topic=topic, health=Health.OK, what=f"{len(network.up)} cards can reach other hosts"
        )


def _leases(leases: Sequence[CardLease]) -> Iterator[HostFinding]:
    for one in leases:
        who = f"{one.what} ({one.user}, pid {one.pid})"
        what = f"waits for {one.count}: {who}" if one.card is None else f"{one.card} leased: {who}"
        yield HostFinding(topic="cards", health=Health.OK, what=what)


def _engines(engines: Sequence[EngineState]) -> HostFinding:
    usable = [one.name for one in engines if not one.problem]
    if usable:
        return HostFinding(topic="containers", health=Health.OK, what=", ".join(usable))
    if engines:
        details = "; ".join(f"{one.name}: {one.problem}" for one in engines)
        return HostFinding(
            topic="containers",
            health=Health.LIMITED,
            what=f"installed, but not usable: {details}",
            fix=f"see what `{engines[0].name} info` says; cells are virtual environments without",
        )
    return HostFinding(
        topic="containers",
        health=Health.LIMITED,
        what="neither docker nor podman; cells are built as virtual environments",
    )


def _image_storage(engines: Sequence[EngineState], disk: DiskSpace) -> Iterator[HostFinding]:
    """Of engines that answer and keep images on this machine."""
    for one in engines:
        if one.problem or one.storage is None:
            continue
        free = disk.free_on(one.storage)
        where = f"{free / GIB:.1f} GiB free where {one.name} keeps images ({one.storage})"
        if free >= disk.images:
            yield HostFinding(topic="image storage", health=Health.OK, what=where)
        else:
            yield HostFinding(
                topic="image storage",
                health=Health.BROKEN if one.name == disk.engine else Health.LIMITED,
                what=f"{where}, the default profile's images need {disk.images / GIB:.0f} GiB",
                fix=storage_remedy(one.name),
            )


def _shared_memory(host: HostReport) -> Iterator[HostFinding]:
    if host.shm_bytes is not None and host.shm_bytes <= DOCKER_SHM_BYTES:
        yield HostFinding(
            topic="shared memory",
            health=Health.LIMITED,
            what=f"{host.shm_bytes / 2**20:.0f} MiB: one loader of torch with workers needs more",
            fix="start this container with --shm-size 8g",
        )


def _disk(disk: DiskSpace) -> HostFinding:
    free, needed = disk.free / GIB, disk.needed / GIB
    if disk.free >= disk.needed:
        return HostFinding(topic="disk", health=Health.OK, what=f"{free:.0f} GiB free")
    return HostFinding(
        topic="disk",
        health=Health.BROKEN,
        what=f"{free:.1f} GiB free, the default profile needs {needed:.0f} GiB",
        fix="free some, or put `--state` and the cache on another disk",
    )


def _git(host: HostReport) -> HostFinding:
    if host.git:
        return HostFinding(topic="git", health=Health.OK, what=host.git)
    return HostFinding(
        topic="git",
        health=Health.LIMITED,
        what="not found; upstream histories cannot be read",
        fix="install git",
    )
