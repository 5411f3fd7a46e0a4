"""How a host's cards get into containers: Ascend Docker Runtime, or nodes and driver files one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
#: What the container guides of vllm-ascend and verl mount beside the nodes (`docker run -v` in both).
DRIVER_FILES = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)


@dataclass(frozen=True, kw_only=True)
class CardPassing:
    """`runtime`: Ascend Docker Runtime is registered with the daemon. `missing`: driver files not there.

    Cells are started with plain devices and mounts, which both ways allow: the runtime of Ascend does nothing
    for a container without ASCEND_VISIBLE_DEVICES.
    """

    runtime: bool
    missing: tuple[str, ...]


def look_at_passing(root: Path = Path("/")) -> CardPassing:
    """What the host below `root` has."""
    return CardPassing(
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
