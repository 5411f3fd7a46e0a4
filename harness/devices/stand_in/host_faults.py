"""Faults of an NPU host that a stand-in can show, and what npu-matrix has to say of each.

`npu-matrix rehearse --faults` runs `doctor` and `plan` on a stand-in with each fault. The texts of npu-smi
are those of its source and of public reports (see `harness.devices.host.npu_smi`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.devices.stand_in.host_tree import ASCEND, HCCN_TOOL, NODES, NPU_SMI, TABLE

Damage = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class HostFault:
    """A fault. damage: brings it into the folder of a stand-in host. told: what `doctor` has to say.

    planned: what `plan` says of checks on the device; "" if it plans them.
    """

    name: str
    damage: Damage
    told: str
    planned: str = ""


def host_faults(manager_nodes: int) -> Iterator[HostFault]:
    """The faults of a host of whose manager nodes so many are needed; card 1 is the one that fails."""
    for name, text, told in _DRIVER_FAILURES:
        yield HostFault(name=name, damage=_prints(text), told=told, planned=told)
    yield HostFault(
        name="npu-smi may not read the boards",
        damage=_prints("npu get board type failed. ret is -9005\n"),
        told="the health of the cards is not known",
    )
    yield HostFault(
        name="npu-smi hangs",
        damage=lambda folder: _program(folder / NPU_SMI, "sleep 600"),
        told="the driver may hang",
        planned="the driver may hang",
    )
    yield HostFault(name="a card is unhealthy", damage=_unhealthy(1), told="unhealthy: 1 (Critical)")
    yield HostFault(
        name="all cards are unhealthy",
        damage=_unhealthy(None),
        told="unhealthy: 0 (Critical)",
        planned="unhealthy: 0 (Critical)",
    )
    yield HostFault(name="the driver lost a card", damage=_lost_card, told="listed without details: card")
    yield HostFault(
        name="a device node is gone",
        damage=lambda folder: _without_node(folder, "davinci1"),
        told="no /dev/davinci node: 1",
    )
    yield HostFault(
        name="a card is divided into virtual NPUs",
        damage=lambda folder: _with_node(folder, "vdavinci116"),
        told="divided into virtual NPUs: 1 (vdavinci116)",
    )
    yield HostFault(name="another process uses a card", damage=_in_use, told="in use: 0/0 by pid 4242")
    yield HostFault(
        name="a manager node is gone",
        damage=lambda folder: _without_node(folder, "davinci_manager"),
        told="/dev/davinci_manager is missing",
        planned="/dev/davinci_manager is missing",
    )
    if manager_nodes > 1:
        yield HostFault(
            name="the node of the host's link to the cards is gone",
            damage=lambda folder: _without_node(folder, "hisi_hdc"),
            told="/dev/hisi_hdc is missing",
            planned="/dev/hisi_hdc is missing",
        )
    yield HostFault(name="a link is down", damage=_link("link status: DOWN"), told="1 (link is DOWN)")
    yield HostFault(name="a port has no address", damage=_no_address, told="1 (no address)")
    yield HostFault(
        name="the driver is older than CANN",
        damage=_old_driver,
        told="or newer, this host has 22.0.4",
        planned="22.0.4",
    )


def running_faults() -> Iterator[HostFault]:
    """Faults that occur on a host while a check runs there. told: what the run has to say of them."""
    name, text, told = _DRIVER_FAILURES[0]
    yield HostFault(name=f"{name} any more", damage=_prints(text), told=told)
    yield HostFault(
        name="a card becomes unhealthy", damage=_unhealthy(1), told="npu-smi reports its health as Critical"
    )


_DRIVER_FAILURES = (
    (
        "the driver is not running",
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005\n",
        "the driver is not running",
    ),
    (
        "other containers use the cards",
        """dcmi model initialized failed, because the device is used. ret is -8020
npu get board type failed. ret is -9005
""",
        "other containers use these cards",
    ),
    ("the driver finds no card", "There is no NPU card on this server.\n", "the driver finds no card"),
    (
        "npu-smi lacks a library",
        """npu-smi: error while loading shared libraries: libdrvdsmi_host.so: cannot open shared object \
file: No such file or directory
""",
        "cannot load a library",
    ),
)


def _prints(text: str) -> Damage:
    return lambda folder: _write(folder / TABLE, text)


def _unhealthy(card: int | None) -> Damage:
    """The first device of a card, or each device, is in a critical state."""

    def damage(folder: Path) -> None:
        lines, seen = [], -1
        for line in (folder / TABLE).read_text("utf-8").splitlines():
            is_head = "| OK " in line
            seen += is_head
            hit = is_head and card in (None, seen)
            lines.append(line.replace("| OK      ", "| Critical") if hit else line)
        _write(folder / TABLE, "\n".join(lines))

    return damage


def _lost_card(folder: Path) -> None:
    """The last device is listed without its second line, and has no node."""
    lines = (folder / TABLE).read_text("utf-8").splitlines()
    last = max(number for number, line in enumerate(lines) if "0000:" in line)
    _write(folder / TABLE, "\n".join((*lines[:last], *lines[last + 1 :])))
    nodes = [node for node in json.loads((folder / NODES).read_text("utf-8")) if node[-1].isdigit()]
    _without_node(folder, nodes[-1])


def _in_use(folder: Path) -> None:
    text = (folder / TABLE).read_text("utf-8")
    row = f"| {'0       0':<26}| {4242:<14}| {'python3':<25}| {1200:<24}|"
    _write(folder / TABLE, f"{text}{row}\n")


def _without_node(folder: Path, name: str) -> None:
    nodes = json.loads((folder / NODES).read_text("utf-8"))
    _write(folder / NODES, json.dumps([node for node in nodes if node != name]))


def _with_node(folder: Path, name: str) -> None:
    nodes = json.loads((folder / NODES).read_text("utf-8"))
    _write(folder / NODES, json.dumps([*nodes, name]))


def _link(state: str) -> Damage:
    script = f"""case "$*" in
  *-ip*) printf 'ipaddr:192.168.%s.1\\n' "$2" ;;
  "-i 1 "*) printf '{state}\\n' ;;
  *) printf 'link status: UP\\n' ;;
esac"""
    return lambda folder: _program(folder / HCCN_TOOL, script)


def _no_address(folder: Path) -> None:
    tool = (folder / HCCN_TOOL).read_text("utf-8").partition("\n")[2]
    _program(folder / HCCN_TOOL, f'case "$*" in "-i 1 -ip -g") exit 1 ;; esac\n{tool}')


def _old_driver(folder: Path) -> None:
    text = (folder / TABLE).read_text("utf-8")
    version = text.partition("Version:")[2].split()[0]
    _write(folder / TABLE, text.replace(version, "22.0.4"))
    _write(folder / ASCEND / "driver/version.info", "Version=22.0.4\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def _program(path: Path, script: str) -> None:
    _write(path, f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
