"""The device nodes of cards: `/dev/davinciN` for each card, and the manager nodes that all cards need."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MANAGER_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
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
    managers = [name for name in MANAGER_NODES if (dev / name).exists()]
    names = [*(f"davinci{card}" for card in cards), *managers]
    ascending = sorted(cards)
    return tuple(str(dev / name) for name in names), ",".join(str(ascending.index(card)) for card in cards)


def node_groups(nodes: Sequence[str]) -> tuple[int, ...]:
    """The groups that may use the nodes: a user who is not root needs them in a container too.

    The driver's installer gives the nodes to the group HwHiAiUser, with no rights for others.
    """
    return tuple(sorted({Path(node).stat().st_gid for node in nodes if Path(node).exists()}))


def visible_devices(cards: Sequence[int], dev: Path = DEV) -> str:
    """`ASCEND_RT_VISIBLE_DEVICES` for these davinci numbers.

    The runtime numbers the visible devices from 0: in a container with davinci5 only, davinci5 is device 0.
    A card without a node keeps its number.
    """
    nodes = davinci_numbers(dev)
    return ",".join(str(nodes.index(card) if card in nodes else card) for card in cards)


DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
#: Files that the container guides of vllm-ascend and verl mount in addition to the nodes (`docker run -v`).
DRIVER_FILES = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)


@dataclass(frozen=True, kw_only=True)
class CardPassthrough:
    """Whether cards can be passed into containers.

    runtime: whether Ascend Docker Runtime is registered with the daemon. missing: driver files that this host
    does not have. Cells get their cards by plain devices and mounts. This also works with Ascend Docker
    Runtime, which ignores containers without ASCEND_VISIBLE_DEVICES.
    """

    runtime: bool
    missing: tuple[str, ...]


def inspect_card_passthrough(root: Path = Path("/")) -> CardPassthrough:
    """Inspect the host whose file system is at `root`."""
    return CardPassthrough(
        runtime=_registered(root / DAEMON_SETTINGS.relative_to("/")),
        missing=tuple(path for path in DRIVER_FILES if not (root / path.lstrip("/")).exists()),
    )


def driver_files() -> list[str]:
    """The driver files that this host has."""
    return [path for path in DRIVER_FILES if Path(path).exists()]


def _registered(settings: Path) -> bool:
    try:
        content = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    runtimes = content.get("runtimes") if isinstance(content, dict) else None
    return isinstance(runtimes, dict) and "ascend" in runtimes
