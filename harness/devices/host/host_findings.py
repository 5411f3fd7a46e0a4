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
from harness.devices.host.host_inspection import HostReport
from harness.devices.host.npu_smi import NpuReport
from harness.devices.host.soc import driver_misfit
from harness.errors import HarnessError

#: Size of /dev/shm in a Docker container that was started without `--shm-size`.
DOCKER_SHM_BYTES = 64 << 20
GIB = 2**30
#: The topic of the leases of cards, which name users of this host.
LEASES = "cards"


@dataclass(frozen=True, kw_only=True)
class DiskSpace:
    """Free and required disk space, in bytes.

    free: free space on the disk where environments are built. needed: what the default profile needs there.
    free_on: returns the free space on the disk of a folder. images: what the images of that profile need.
    engine: the engine that builds the cells.
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
    """One line of the report of `npu-matrix doctor`. fix: what to do, "" when nothing has to be done."""

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
    leases: Callable[[], Sequence[CardLease]] = tuple,
    network: CardNetwork | None = None,
) -> tuple[HostFinding, ...]:
    """The findings, in the order in which `doctor` shows them.

    zig: whether the ziglang wheel is installed. engine_of: queries an installed container engine. leases:
    lists the leases of this host's cards and the requests in the queue. network: state of the cards' ports,
    None on a host without cards.
    """
    engines = [engine_of(name) for name in host.container_engines]
    return (
        _simulated(host, zig=zig),
        _npu(host),
        *_cann(host),
        *_driver(host),
        *_network(network),
        *_leases(leases, host),
        _engines(engines),
        *_image_storage(engines, disk),
        *_passthrough(host),
        *_shared_memory(host),
        _disk(disk),
        _git(host),
    )


def _ok(topic: str, what: str) -> HostFinding:
    return HostFinding(topic=topic, health=Health.OK, what=what)


def _limited(topic: str, what: str, fix: str = "") -> HostFinding:
    return HostFinding(topic=topic, health=Health.LIMITED, what=what, fix=fix)


def _broken(topic: str, what: str, fix: str) -> HostFinding:
    return HostFinding(topic=topic, health=Health.BROKEN, what=what, fix=fix)


def _simulated(host: HostReport, *, zig: bool) -> HostFinding:
    topic = "simulated device"
    if host.compiler or zig:
        return _ok(topic, f"can be built with {host.compiler or 'the ziglang wheel'}")
    return _broken(
        topic,
        "no C compiler is installed, so the simulated CANN runtime cannot be built",
        fix=f"install gcc or clang, or `{sys.executable} -m pip install ziglang`",
    )


def _npu(host: HostReport) -> HostFinding:
    if host.npu is None and not host.npu_error:
        return _limited("NPU", "no NPU was found; cells that need hardware cannot run here")
    total = len(host.own_chips) if host.npu else len(host.own_cards)
    known = [host.soc or "unknown SoC", f"driver {host.driver or 'unknown'}"]
    what = f"{len(host.usable_chips)} of {total} chips usable, {', '.join(known)}, "
    what += f"CANN {host.cann or 'not installed'}"
    what += f", of the cards that {host.assigned.by} assigns to this job" if host.assigned else ""
    problems = _problems(host)
    if not problems:
        return _ok("NPU", what)
    details = "; ".join(problem for problem, _ in problems)
    if host.npu is None and not host.unread:
        what = details + (f" (driver {host.driver})" if host.driver else "")
        return _limited("NPU", what, fix=problems[0][1])
    return _limited("NPU", f"{what}; {details}", fix="; ".join(dict.fromkeys(fix for _, fix in problems)))


def why_no_card(host: HostReport) -> str:
    """Why no card of this host can be used, although it has some; "" if one can, or it has none."""
    if host.usable_chips:
        return ""
    return "; ".join(problem for problem, _ in _problems(host))


def _problems(host: HostReport) -> list[tuple[str, str]]:
    """What keeps cards from being used, and what to do."""
    problems = []
    closed = [one for card, one in host.closed.items() if card in host.own_cards]
    if host.not_open:
        problems.append((host.not_open.why, host.not_open.fix))
    elif closed:
        # The driver's installer gives all nodes to one group, so one of them says it for all.
        others = f" (and {len(closed) - 1} others)" if closed[1:] else ""
        problems.append((closed[0].why + others, closed[0].fix))
    divided = [
        f"{card} ({', '.join(nodes)})" for card, nodes in host.divided.items() if card in host.own_cards
    ]
    if divided:
        fix = "pass a virtual NPU into a container (--device /dev/vdavinciN:/dev/davinciN) and run there, or "
        fix += "remove them with `npu-smi set -t destroy-vnpu`"
        problems.append((f"divided into virtual NPUs: {'; '.join(divided)}", fix))
    if host.assigned and not host.assigned.cards:
        fix = "name cards of this host in these variables, or unset them"
        problems.append((f"{host.assigned.by} names no card of this host", fix))
    if host.npu_error:
        problems.append((host.npu_error, host.npu_fix or "check the driver with `npu-smi info`"))
    if host.missing_nodes:
        missing = ", ".join(f"/dev/{name}" for name in host.missing_nodes)
        fix = "pass the manager nodes into the container, or reload the driver"
        problems.append((f"{missing} is missing", fix))
    return problems + (_card_problems(host, host.npu) if host.npu else [])


def _card_problems(host: HostReport, npu: NpuReport) -> list[tuple[str, str]]:
    """Each problem with the cards that have it, and what to do."""
    own = host.own_chips
    foreign = {(chip.card, chip.chip) for chip in npu.chips} - {(chip.card, chip.chip) for chip in own}
    unhealthy = [f"{chip.index} ({chip.health})" for chip in own if not chip.healthy]
    used = [
        f"{process.card}/{process.chip} by pid {process.pid}"
        for process in npu.processes
        if (process.card, process.chip) not in foreign
    ]
    others = [f"{chip.index} ({chip.name})" for chip in host.other_chips]
    nodeless = [str(chip.index) for chip in own if chip.index not in host.davinci]
    silent = [str(card) for card in npu.silent]
    problems = []
    if not npu.chips and not silent:
        fix = "check whether `lspci` lists the cards, then reload the driver"
        problems.append(("npu-smi lists no card", fix))
    if unhealthy:
        fix = "run `npu-smi info -t health -i CARD`; reset the card or do not use it"
        problems.append((f"unhealthy: {', '.join(unhealthy)}", fix))
    if silent:
        fix = "check `dmesg` for cards that left the bus; reseat them or reboot"
        problems.append((f"listed without details: card {', '.join(silent)}", fix))
    if used:
        fix = "wait for these processes, or end those that are yours"
        problems.append((f"in use: {', '.join(used)}", fix))
    if nodeless:
        fix = "pass the nodes into the container (--device), or reload the driver"
        problems.append((f"no /dev/davinci node: {', '.join(nodeless)}", fix))
    if others:
        fix = "a host offers chips of one family; run on the others by making only their nodes visible"
        problems.append((f"of another family: {', '.join(others)}", fix))
    if own and not host.soc:
        fix = "report this chip name in an issue of npu-matrix"
        problems.append((f"unknown chip name {own[0].name!r}", fix))
    return problems


def _cann(host: HostReport) -> Iterator[HostFinding]:
    if host.cann_problems and (host.npu is not None or host.npu_error):
        what = "; ".join(problem for problem, _ in host.cann_problems)
        yield _limited("CANN", what, "; ".join(dict.fromkeys(fix for _, fix in host.cann_problems)))
    elif host.npu is not None and not host.cann:
        yield _limited(
            "CANN",
            "is not installed, so only cells in containers can use the cards",
            fix="install the CANN of your stack and source its set_env.sh, or use `--engine docker` (or "
            "`podman`), where the image has CANN",
        )


def _driver(host: HostReport) -> Iterator[HostFinding]:
    """Compares the installed CANN with the driver; the planner does this for the CANN of each cell."""
    misfit = driver_misfit(host.cann, host.driver) if host.cann and host.driver else ""
    if misfit:
        yield _limited(
            "driver", misfit, fix="update the driver and its firmware, or use cells with an older CANN"
        )


def _passthrough(host: HostReport) -> Iterator[HostFinding]:
    if host.passthrough is None or host.npu is None:
        return
    topic = "cards in containers"
    runtime = "Ascend Docker Runtime is registered; " if host.passthrough.runtime else ""
    if host.passthrough.missing:
        yield _limited(
            topic,
            f"{runtime}driver files are missing on this host: {', '.join(host.passthrough.missing)}",
            fix="install the driver for all users; inside a container, mount these files from the host",
        )
    else:
        yield _ok(topic, f"{runtime}device nodes and driver files are passed into containers one by one")


def _network(network: CardNetwork | None) -> Iterator[HostFinding]:
    if network is None:
        return
    topic = "HCCL network"
    fix = "set addresses with `hccn_tool -i CARD -ip -s`; only cells on several hosts need this network"
    problems = [f"{card} ({problem})" for card, problem in network.links.items() if problem]
    if network.error:
        yield _limited(topic, network.error, fix)
    elif problems:
        reachable = f"{len(network.up)} of {len(network.links)} cards can reach other hosts"
        yield _limited(topic, f"{reachable}; not: {', '.join(problems)}", fix)
    else:
        yield _ok(topic, f"{len(network.up)} cards can reach other hosts")


def _leases(leases: Callable[[], Sequence[CardLease]], host: HostReport) -> Iterator[HostFinding]:
    try:
        listed = leases()
    except HarnessError as error:
        health = Health.BROKEN if host.npu else Health.LIMITED
        problem = error.problems[0]
        yield HostFinding(
            topic=LEASES,
            health=health,
            what=f"{problem.what}: {problem.where}: {problem.why}",
            fix=problem.fix,
        )
        return
    for lease in listed:
        holder = f"{lease.what} ({lease.user}, pid {lease.pid})"
        if lease.card is None:
            yield _ok(LEASES, f"{holder} waits for {lease.count} cards")
        else:
            yield _ok(LEASES, f"card {lease.card} is leased by {holder}")


def _engines(engines: Sequence[EngineState]) -> HostFinding:
    usable = [engine.name for engine in engines if not engine.problem]
    if usable:
        return _ok("containers", ", ".join(usable))
    if engines:
        details = "; ".join(f"{engine.name}: {engine.problem}" for engine in engines)
        return _limited(
            "containers",
            f"installed, but not usable: {details}",
            fix=f"check the output of `{engines[0].name} info`; until then cells are virtual environments",
        )
    return _limited("containers", "neither docker nor podman is installed; cells are virtual environments")


def _image_storage(engines: Sequence[EngineState], disk: DiskSpace) -> Iterator[HostFinding]:
    """Free space for the images of usable engines that store them on this machine."""
    topic = "image storage"
    for engine in engines:
        if engine.problem or engine.storage is None:
            continue
        free = disk.free_on(engine.storage)
        what = f"{free / GIB:.1f} GiB free where {engine.name} stores images ({engine.storage})"
        if free >= disk.images:
            yield _ok(topic, what)
            continue
        finding = _broken if engine.name == disk.engine else _limited
        needed = f"the default profile's images need {disk.images / GIB:.0f} GiB"
        yield finding(topic, f"{what}, {needed}", storage_remedy(engine.name))


def _shared_memory(host: HostReport) -> Iterator[HostFinding]:
    if host.shm_bytes is not None and host.shm_bytes <= DOCKER_SHM_BYTES:
        yield _limited(
            "shared memory",
            f"{host.shm_bytes / 2**20:.0f} MiB, too little for a torch DataLoader with worker processes",
            fix="start this container with --shm-size 8g",
        )


def _disk(disk: DiskSpace) -> HostFinding:
    free, needed = disk.free / GIB, disk.needed / GIB
    if disk.free >= disk.needed:
        return _ok("disk", f"{free:.0f} GiB free")
    return _broken(
        "disk",
        f"{free:.1f} GiB free, the default profile needs {needed:.0f} GiB",
        fix="free disk space, or put `--state` and the cache on another disk",
    )


def _git(host: HostReport) -> HostFinding:
    if host.git:
        return _ok("git", host.git)
    return _limited("git", "not found; upstream histories cannot be read", fix="install git")
