"""Whether something listens at the address of a Ray cluster. Ray itself retries for more than a minute."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from harness.errors import InfrastructureError

CONNECT_SECONDS = 5.0
ADDRESS = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
# `ray start` writes the address of the cluster that it starts there; `ray.init("auto")` reads it.
CURRENT_CLUSTER = Path("ray") / "ray_current_cluster"
FIX = "start a cluster (`ray start --head`), or pass its address with --ray-address HOST:PORT"


def require_listening(address: str, environ: Mapping[str, str] = os.environ) -> None:
    """InfrastructureError if nothing accepts connections at `address`, or at the one that `auto` means."""
    resolved = _recorded(environ) if address in ("", "auto") else address
    if not resolved:
        return
    found = ADDRESS.fullmatch(resolved.strip())
    if found is None:
        raise InfrastructureError(
            f"{resolved!r} is not the address of a Ray cluster", why="expected HOST:PORT", fix=FIX
        )
    host, port = found["host"], int(found["port"])
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InfrastructureError(
            "no Ray cluster can be reached",
            why=f"nothing accepts connections at {host}:{port}: {error}",
            fix=FIX,
        ) from error


def _recorded(environ: Mapping[str, str]) -> str:
    if named := environ.get("RAY_ADDRESS", ""):
        return "" if named == "auto" else named
    try:
        return (Path(environ.get("RAY_TMPDIR") or "/tmp") / CURRENT_CLUSTER).read_text("utf-8").strip()  # noqa: S108 - Ray's folder
    except (OSError, ValueError):
        return ""
