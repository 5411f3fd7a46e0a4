"""A wrong address of a cluster is told at once, by real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.errors import InfrastructureError
from harness.run.executors.ray_address import require_listening


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


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
