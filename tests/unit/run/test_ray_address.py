"""A wrong address of a cluster is told at once, by real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import InfrastructureError
from harness.run.executors.ray_address import require_listening

SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@contextlib.contextmanager
def server(answer: bytes, *, closes: bool = False) -> Iterator[int]:
    """The port of a server that answers each connection with these bytes."""
    kept = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(answer)
                if closes:
                    connection.close()
                kept.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in kept:
            connection.close()


@pytest.fixture
def listening() -> Iterator[int]:
    with server(SETTINGS) as port:
        yield port


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ray://127.0.0.1:{}"])
def test_something_listens(listening: int, form: str) -> None:
    require_listening(form.format(listening), {})


@pytest.mark.parametrize(
    "address", ["127.0.0.1:{}", "nowhere.invalid:{}", "127.0.0.1:99999", "cluster", "1:2:3"]
)
def test_a_wrong_address_is_told(address: str) -> None:
    with pytest.raises(InfrastructureError) as told:
        require_listening(address.format(closed_port()), {})
    assert "--ray-address" in str(told.value)


@pytest.mark.parametrize(
    ("answer", "closes", "why"),
    [
        (b"", False, "does not answer within"),
        (b"", True, "another service|ends connections"),
        (b"HTTP/1.0 400 Bad request\r\n\r\n", True, "another service"),
        (SETTINGS[:5], False, "does not answer within"),
    ],
)
def test_another_service_at_the_address_is_told_in_time(answer: bytes, closes: bool, why: str) -> None:
    started = time.monotonic()
    with server(answer, closes=closes) as port, pytest.raises(InfrastructureError, match=why):
        require_listening(f"127.0.0.1:{port}", {})
    assert time.monotonic() - started < 9


def test_with_tls_ray_itself_has_to_tell() -> None:
    with server(b"") as port:
        require_listening(f"127.0.0.1:{port}", {"RAY_USE_TLS": "1"})


def test_the_address_of_a_cluster_that_ended_is_told(tmp_path: Path, listening: int) -> None:
    record = tmp_path / "ray" / "ray_current_cluster"
    record.parent.mkdir()
    environ = {"RAY_TMPDIR": str(tmp_path)}
    require_listening("auto", environ)
    record.write_text(f"127.0.0.1:{listening}")
    require_listening("auto", environ)
    record.write_text(f"127.0.0.1:{closed_port()}")
    with pytest.raises(InfrastructureError, match="no Ray cluster"):
        require_listening("auto", environ)
    with pytest.raises(InfrastructureError, match="no Ray cluster"):
        require_listening("auto", {"RAY_ADDRESS": f"127.0.0.1:{closed_port()}"})
