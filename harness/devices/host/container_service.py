"""The container engines of this host: whether they can be used, and where they store images."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INFO_TIMEOUT_S = 20.0
INFO = ("info", "--format", "{{json .}}")
#: Default image folder of the system's containerd. A Docker daemon can let containerd store its images.
CONTAINERD_FOLDER = Path("/var/lib/containerd")
CONTAINERD_STORE = "io.containerd.snapshotter.v1"
SYSTEM_CONTAINERD_SOCKETS = ("/run/containerd/", "/var/run/containerd/")
#: The setting with which each engine's image folder can be moved.
STORAGE_SETTINGS = {"docker": "`data-root` in daemon.json", "podman": "`graphroot` in storage.conf"}


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """An engine whose program is installed.

    problem: why it cannot be used, "" when it can. storage: the folder on this machine in which it stores
    images, None when that is unknown.
    """

    name: str
    problem: str = ""
    storage: Path | None = None


def query_engine(program: str) -> EngineState:
    """Run `PROGRAM info`, which fails for example when the daemon is down or the user may not use it."""
    try:
        done = subprocess.run(
            [program, *INFO],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INFO_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"`{program} info` did not finish within {INFO_TIMEOUT_S:g} s"
        return EngineState(name=program, problem=problem)
    except OSError as error:
        return EngineState(name=program, problem=str(error))
    if done.returncode:
        messages = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        problem = (
            messages[-1][:200] if messages else f"`{program} info` failed with exit code {done.returncode}"
        )
        return EngineState(name=program, problem=problem)
    try:
        info = json.loads(done.stdout)
    except ValueError:
        info = None
    return EngineState(name=program, storage=storage_folder(info) if isinstance(info, dict) else None)


def storage_folder(info: Mapping[str, object], host: str | None = None) -> Path | None:
    """The folder in which an engine stores images, from the output of `docker info` or `podman info`.

    None for an engine on another machine or in a virtual machine, whose folders are not on this host. host:
    the name of this host.
    """
    name = info.get("Name") or _mapping(info.get("host")).get("hostname")
    root = info.get("DockerRootDir") or _mapping(info.get("store")).get("graphRoot")
    if name != (host or socket.gethostname()) or not isinstance(root, str):
        return None
    folder = Path(root)
    if _uses_system_containerd(info):
        folder = CONTAINERD_FOLDER
    return folder if folder.is_absolute() and folder.exists() else None


def storage_remedy(engine: str) -> str:
    """What to do when the disk with an engine's images is full."""
    setting = f" ({STORAGE_SETTINGS[engine]})" if engine in STORAGE_SETTINGS else ""
    return (
        f"run `npu-matrix cleanup`, which removes what no outcome needs, then `{engine} system prune`; "
        f"or store the images on a larger disk{setting}"
    )


def _uses_system_containerd(info: Mapping[str, object]) -> bool:
    """Whether the system's containerd stores the images, not one that the daemon started for itself."""
    status = info.get("DriverStatus")
    address = str(_mapping(info.get("Containerd")).get("Address", ""))
    pairs = status if isinstance(status, list) else []
    return any(CONTAINERD_STORE in pair for pair in pairs) and address.startswith(SYSTEM_CONTAINERD_SOCKETS)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}
