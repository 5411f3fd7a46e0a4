"""Container engines, replaced by scripts that print shortened outputs of real engines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.devices.host.container_service import EngineState, query_engine, storage_folder
from harness.devices.host.host_findings import DiskSpace, Health, HostFinding, examine_host
from harness.devices.host.host_inspection import HostReport, HostView, inspect_host

HOST = "a-host"
GIB = 2**30


def docker(root: Path, **more: Any) -> dict[str, Any]:
    """The output of `docker info`, version 20.10."""
    info = {
        "ID": "AB:CD",
        "Name": HOST,
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "tmpfs"]],
    }
    return {**info, "DockerRootDir": str(root), **more}


def podman(root: Path) -> dict[str, Any]:
    """The output of `podman info`, version 4.3."""
    return {
        "host": {"hostname": HOST, "arch": "amd64"},
        "store": {"graphRoot": str(root), "graphDriverName": "overlay"},
    }


def test_each_engine_tells_where_images_are(tmp_path: Path) -> None:
    assert storage_folder(docker(tmp_path), HOST) == tmp_path
    assert storage_folder(podman(tmp_path), HOST) == tmp_path


def test_the_folder_of_another_machine_is_none_of_this_one(tmp_path: Path) -> None:
    """A remote daemon, one in a virtual machine, or the daemon of the host on which a container runs."""
    assert storage_folder(docker(tmp_path), "another") is None
    assert storage_folder(docker(tmp_path / "gone"), HOST) is None


@pytest.mark.parametrize(
    "address", ["/run/containerd/containerd.sock", "/var/run/docker/containerd/containerd.sock"]
)
def test_images_that_are_left_to_containerd_are_where_that_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    system = tmp_path / "containerd"
    system.mkdir()
    monkeypatch.setattr("harness.devices.host.container_service.CONTAINERD_FOLDER", system)
    store = [["driver-type", "io.containerd.snapshotter.v1"]]
    info = docker(tmp_path, DriverStatus=store, Containerd={"Address": address})
    assert storage_folder(info, HOST) == (system if address.startswith("/run/containerd") else tmp_path)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"Name": HOST},
        {"Name": HOST, "DockerRootDir": 3},
        {"Name": HOST, "DockerRootDir": "data"},
        {"store": []},
    ],
)
def test_an_answer_without_a_folder_is_no_folder(info: dict[str, Any]) -> None:
    assert storage_folder(info, HOST) is None


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int = 0) -> HostReport:
    """A host whose `docker` prints this output."""
    program = folder / "docker"
    (folder / "output").write_text(output)
    program.write_text(f'#!/bin/sh\ncat "{folder}/output"\nexit {code}\n')
    program.chmod(0o755)
    # A loaded machine may start the script slowly.
    monkeypatch.setattr("harness.devices.host.container_service.INFO_TIMEOUT_S", 300.0)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return inspect_host(
        HostView(dev=folder, environ={}, which=lambda name: name if name == "docker" else None)
    )


@pytest.mark.parametrize("output", ["", "[1]", "Client:\n Version: 20.10\n"])
def test_an_engine_that_answers_in_another_way_is_there_and_keeps_images_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    installed(tmp_path, monkeypatch, output)
    assert query_engine("docker") == EngineState(name="docker")


def storage(host: HostReport, free: int, engine: str = "venv") -> list[HostFinding]:
    space = DiskSpace(
        free=9 * GIB, needed=8 * GIB, free_on=lambda _folder: free, images=5 * GIB, engine=engine
    )
    return [
        finding for finding in examine_host(host, zig=True, disk=space) if finding.topic == "image storage"
    ]


def test_doctor_asks_for_room_where_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = json.dumps(docker(tmp_path, Name=socket.gethostname()))
    host = installed(tmp_path, monkeypatch, output)
    [roomy] = storage(host, 6 * GIB)
    assert (roomy.health, roomy.fix) == (Health.OK, "")
    assert roomy.what == f"6.0 GiB free where docker stores images ({tmp_path})"
    [small] = storage(host, GIB)
    assert small.health is Health.LIMITED
    assert (
        small.what
        == f"1.0 GiB free where docker stores images ({tmp_path}), the default profile's images need 5 GiB"
    )
    assert "npu-matrix cleanup" in small.fix
    assert "`data-root` in daemon.json" in small.fix
    # If docker builds the cells, the default profile cannot run.
    [chosen] = storage(host, GIB, engine="docker")
    assert chosen.health is Health.BROKEN


def test_doctor_says_nothing_of_images_that_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = installed(tmp_path, monkeypatch, json.dumps(docker(tmp_path, Name="far-away")))
    assert storage(host, 0) == []
    assert storage(installed(tmp_path, monkeypatch, "", code=1), 0) == []
