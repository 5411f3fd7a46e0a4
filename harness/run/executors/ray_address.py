"""Whether a Ray cluster can be at an address. Ray retries for minutes, also if another service is there.

Ray speaks gRPC, which is HTTP/2: the first frame of a server are its settings (RFC 9113, section 3.4).
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from harness.errors import InfrastructureError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 3.0
# The preface of a client with empty settings. The head of a frame has 9 bytes; the fourth is its type.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HEAD_BYTES, _TYPE_AT, _SETTINGS = 9, 3, 4
ADDRESS = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
# `ray start` writes the address of the cluster that it starts there; `ray.init("auto")` reads it.
CURRENT_CLUSTER = Path("ray") / "ray_current_cluster"
FIX = "start a cluster (`ray start --head`), or pass its address with --ray-address HOST:PORT"


def require_listening(address: str, environ: Mapping[str, str] = os.environ) -> None:
    """InfrastructureError if no gRPC server is at `address`, or at the one that `auto` means."""
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
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            # With TLS, Ray's own connection has to tell.
            wrong = "" if environ.get("RAY_USE_TLS", "0") not in ("", "0") else _why_not_grpc(connection)
    except (OSError, OverflowError) as error:
        raise InfrastructureError(
            "no Ray cluster can be reached",
            why=f"nothing accepts connections at {host}:{port}: {error}",
            fix=FIX,
        ) from error
    if wrong:
        raise InfrastructureError("no Ray cluster can be reached", why=f"{host}:{port} {wrong}", fix=FIX)


def _why_not_grpc(connection: socket.socket) -> str:
    """Why the server of the connection is none of gRPC, or ""."""
    until, head = time.monotonic() + ANSWER_SECONDS, b""
    try:
        connection.sendall(_PREFACE)
        while len(head) < _HEAD_BYTES:
            connection.settimeout(max(0.001, until - time.monotonic()))
            received = connection.recv(_HEAD_BYTES - len(head))
            if not received:
                break
            head += received
    except TimeoutError:
        return f"accepts connections and does not answer within {ANSWER_SECONDS:g} s"
    except OSError as error:
        return f"ends connections: {error}"
    if len(head) == _HEAD_BYTES and head[_TYPE_AT] == _SETTINGS:
        return ""
    return "is another service: it does not speak gRPC"


def _recorded(environ: Mapping[str, str]) -> str:
    if named := environ.get("RAY_ADDRESS", ""):
        return "" if named == "auto" else named
    try:
        return (Path(environ.get("RAY_TMPDIR") or "/tmp") / CURRENT_CLUSTER).read_text("utf-8").strip()  # noqa: S108 - Ray's folder
    except (OSError, ValueError):
        return ""
