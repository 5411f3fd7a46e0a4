"""The device nodes of cards: `/dev/davinciN` for each card, and the manager nodes that all cards need."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MANAGER_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
#: SoC families whose driver makes only some of them. This, and the further nodes that a container gets if the
#: host has them, are from ascend-common/cdi/devnode.go of MindCluster.
FEWER_NODES = {"a5": ("davinci_manager", "hisi_hdc"), "310b": ("davinci_manager",)}
FURTHER_NODES, FURTHER_FOLDERS = ("dvpp_cmdlist",), ("uburma", "ummu")
DEV = Path("/dev")


def davinci_numbers(dev: Path = DEV) -> tuple[int, ...]:
    """The numbers N of the nodes `davinciN` in the folder, in ascending order."""
    if not dev.is_dir():
        return ()
    numbers = (re.fullmatch(r"davinci(\d{1,6})", entry.name) for entry in dev.iterdir())
    return tuple(sorted(int(match.group(1)) for match in numbers if match))


def card_nodes(visible: str, dev: Path = DEV) -> tuple[tuple[str, ...], str]:
    """The nodes to pass to a container, and `ASCEND_RT_VISIBLE_DEVICES` for the programs inside it.

    visible: `ASCEND_RT_VISIBLE_DEVICES` of this host, "" for all cards. Other cards are not passed, because
    the driver does not allow a card in two containers. Inside the container the driver
    numbers the passed cards from 0, in ascending order of their numbers on this host. The second result names
    the cards by these new numbers, in the order of `visible`.
    """
    nodes = davinci_numbers(dev)
    indices = [int(index) for index in visible.split(",") if index.isdecimal()]
    cards = [nodes[index] if index < len(nodes) else index for index in indices] or list(nodes)
    managers = [dev / name for name in (*MANAGER_NODES, *FURTHER_NODES) if (dev / name).exists()]
    buses = [path for name in FURTHER_FOLDERS for path in sorted((dev / name).glob("*"))]
    passed = [*(dev / f"davinci{card}" for card in cards), *managers, *buses]
    ascending = sorted(cards)
    return tuple(map(str, passed)), ",".join(str(ascending.index(card)) for card in cards)


def divided_cards(dev: Path = DEV) -> dict[int, tuple[str, ...]]:
    """davinci number of each card that is divided into virtual NPUs -> the nodes of these, `vdavinciM`.

    M is 100 to 115 for card 0, 116 to 131 for card 1, and so on ("create-vnpu" in the guide to npu-smi).
    """
    found: dict[int, list[str]] = {}
    for entry in sorted(dev.glob("vdavinci*")):
        match = re.fullmatch(r"vdavinci(\d{3,6})", entry.name)
        if match:
            found.setdefault((int(match.group(1)) - 100) // 16, []).append(entry.name)
    return {card: tuple(names) for card, names in found.items()}


def node_groups(nodes: Sequence[str]) -> tuple[int, ...]:
    """The groups that may use the nodes: a user who is not root needs them in a container too.

    The driver's installer gives the nodes to the group HwHiAiUser, with no rights for others.
    """
    return tuple(sorted({Path(node).stat().st_gid for node in nodes if Path(node).exists()}))


@dataclass(frozen=True, kw_only=True)
class ClosedNode:
    """Why this user may not open a device node, and what to do."""

    why: str
    fix: str


def closed_node(node: Path) -> ClosedNode | None:
    """Why this user may not open an existing node, None if he may.

    Also root may not where the rules of a container (its cgroup) do not allow the device.
    """
    if not node.exists() or os.access(node, os.R_OK | os.W_OK):
        return None
    facts = node.stat()
    by_rules = ClosedNode(
        why=f"{node} may not be opened in this container", fix="pass the node into it with --device"
    )
    if os.geteuid() == 0:
        return by_rules
    try:
        group = grp.getgrgid(facts.st_gid).gr_name
    except KeyError:
        group = str(facts.st_gid)
    if facts.st_gid in {os.getegid(), *os.getgroups()} and facts.st_mode & 0o060 == 0o060:
        return by_rules
    return ClosedNode(
        why=f"this user may not open {node}, which belongs to the group {group}",
        fix="add this user to that group (usermod -aG GROUP USER) and log in again, or pass --group-add",
    )


def visible_devices(cards: Sequence[int], dev: Path = DEV) -> str:
    """`ASCEND_RT_VISIBLE_DEVICES` for these davinci numbers.

    The runtime numbers the visible devices from 0: in a container with davinci5 only, davinci5 is device 0.
    A card without a node keeps its number.
    """
    nodes = davinci_numbers(dev)
    return ",".join(str(nodes.index(card) if card in nodes else card) for card in cards)
