"""The container engines of this host: do they answer, and where do they keep images?"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INFO_TIMEOUT_S = 20.0
INFO = ("info", "--format", "{{json .}}")
#: Where the containerd of the system keeps images by default; a daemon may leave them to it.
CONTAINERD_FOLDER = Path("/var/lib/containerd")
CONTAINERD_STORE = "io.containerd.snapshotter.v1"
SYSTEM_CONTAINERD_SOCKETS = ("/run/containerd/", "/var/run/containerd/")
#: The setting of each engine for the folder of its images.
STORAGE_SETTINGS = {"docker": "`data-root` in daemon.json", "podman": "`graphroot` in storage.conf"}


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """An engine whose program is installed.

    problem: why it cannot be used from here, or "". storage: the folder of this machine that takes its
    images, None where that cannot be setting.
    """

    name: str
    problem: str = ""
    storage: Path | None = None


def query_engine(program: str) -> EngineState:
    """What `program info` says; docker wants daemon and group."""
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
        problem = f"`{program} info` does not end within {INFO_TIMEOUT_S:g} s"
        return EngineState(name=program, problem=problem)
    except OSError as error:
        return EngineState(name=program, problem=str(error))
    if done.returncode:
        messages = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        problem = messages[-1][:200] if messages else f"`{program} info` fails with code {done.returncode}"
        return EngineState(name=program, problem=problem)
    try:
        info = json.loads(done.stdout)
    except ValueError:
        info = None
    return EngineState(name=program, storage=storage_folder(info) if isinstance(info, dict) else None)


def storage_folder(info: Mapping[str, Any], host: str | None = None) -> Path | None:
    """Where an engine keeps images, from what `docker info` or `podman info` answers.

    None for an engine of another machine or of a virtual one, whose folders are not those of this host:
    `host` is the name of this one.
    """
    own = _mapping(info.get("host"))
    name = info.get("Name") or own.get("hostname")
    root = info.get("DockerRootDir") or _mapping(info.get("store")).get("graphRoot")
    if name != (host or socket.gethostname()) or not isinstance(root, str):
        return None
    folder = Path(root)
    if _uses_system_containerd(info):
        folder = CONTAINERD_FOLDER
    return folder if folder.is_absolute() and folder.exists() else None


def storage_remedy(engine: str) -> str:
    """What helps when the disk of an engine's images is full."""
    setting = f" ({STORAGE_SETTINGS[engine]})" if engine in STORAGE_SETTINGS else ""
    return (
        f"`npu-matrix cleanup` removes what no outcome needs; then `{engine} system prune`, "
        f"or give it a disk with more room{setting}"
    )


def _uses_system_containerd(info: Mapping[str, Any]) -> bool:
    """Whether the images are with the containerd of the system; one of the daemon's own is below its root."""
    status = info.get("DriverStatus") or ()
    address = str(_mapping(info.get("Containerd")).get("Address", ""))
    return any(CONTAINERD_STORE in pair for pair in status) and address.startswith(SYSTEM_CONTAINERD_SOCKETS)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
