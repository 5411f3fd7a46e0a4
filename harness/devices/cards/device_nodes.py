"""The device nodes of cards: `/dev/davinciN` for each, and those that every card needs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MANAGER_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
DEV = Path("/dev")


def davinci_numbers(dev: Path = DEV) -> tuple[int, ...]:
    """N of each `davinciN` in that folder, in order."""
    if not dev.is_dir():
        return ()
    numbers = (re.fullmatch(r"davinci(\d{1,6})", entry.name) for entry in dev.iterdir())
    return tuple(sorted(int(match.group(1)) for match in numbers if match))


def card_nodes(visible: str, dev: Path = DEV) -> tuple[tuple[str, ...], str]:
    """The nodes a container needs for those cards, and what makes them visible inside it.

    visible: `ASCEND_RT_VISIBLE_DEVICES` of this host, "" for every card. No card is given that was not asked
    for: the driver refuses a card to a second container. Inside, devices count from 0.
    """
    nodes = davinci_numbers(dev)
    places = [int(place) for place in visible.split(",") if place.isdecimal()]
    cards = [nodes[place] if place < len(nodes) else place for place in places] or list(nodes)
    managers = [name for name in MANAGER_NODES if (dev / name).exists()]
    names = [*(f"davinci{card}" for card in cards), *managers]
    return tuple(str(dev / name) for name in names), visible_devices_inside(cards)


def visible_devices_inside(cards: Sequence[int]) -> str:
    """`ASCEND_RT_VISIBLE_DEVICES` where there are these cards alone, in the order given.

    The driver counts by number, so a list that is not in order keeps its order by its places.
    """
    ordered = sorted(cards)
    return ",".join(str(ordered.index(card)) for card in cards)


def visible_devices(cards: Sequence[int], dev: Path = DEV) -> str:
    """`ASCEND_RT_VISIBLE_DEVICES` for these davinci numbers.

    The runtime counts the devices it can see from 0, whatever their numbers: in a container that was given
    davinci5 alone, that one is device 0. A card without a node keeps its number.
    """
    nodes = davinci_numbers(dev)
    return ",".join(str(nodes.index(card) if card in nodes else card) for card in cards)


DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
#: What the container guides of vllm-ascend and verl mount beside the nodes (`docker run -v` in both).
DRIVER_FILES = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)


@dataclass(frozen=True, kw_only=True)
class CardPassthrough:
    """`runtime`: Ascend Docker Runtime is registered with the daemon. `missing`: driver files not there.

    Cells are started with plain devices and mounts, which both ways allow: the runtime of Ascend does nothing
    for a container without ASCEND_VISIBLE_DEVICES.
    """

    runtime: bool
    missing: tuple[str, ...]


def inspect_card_passthrough(root: Path = Path("/")) -> CardPassthrough:
    """What the host below `root` has."""
    return CardPassthrough(
        runtime=_registered(root / DAEMON_SETTINGS.relative_to("/")),
        missing=tuple(path for path in DRIVER_FILES if not (root / path.lstrip("/")).exists()),
    )


def driver_files() -> list[str]:
    """Those of this host that are there."""
    return [path for path in DRIVER_FILES if Path(path).exists()]


def _registered(settings: Path) -> bool:
    try:
        found = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    runtimes = found.get("runtimes") if isinstance(found, dict) else None
    return isinstance(runtimes, dict) and "ascend" in runtimes
