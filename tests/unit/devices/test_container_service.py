"""What engines say of themselves, by programs that say it; the answers are as real engines gave them, shortened."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.devices.host.container_service import EngineState, query_engine, storage_folder
from harness.devices.host.host_findings import DiskSpace, Health, HostFinding, examine_host
from harness.devices.host.inventory import HostReport, HostView, inspect_host

HOST = "a-host"
GIB = 2**30


def docker(root: Path, **more: Any) -> dict[str, Any]:
    """Of `docker info`, version 20.10."""
    given = {
        "ID": "AB:CD",
        "Name": HOST,
        "Driver": "overlay2",
        "DriverStatus": [["Backing Filesystem", "tmpfs"]],
    }
    return {**given, "DockerRootDir": str(root), **more}


def podman(root: Path) -> dict[str, Any]:
    """Of `podman info`, version 4.3."""
    return {
        "host": {"hostname": HOST, "arch": "amd64"},
        "store": {"graphRoot": str(root), "graphDriverName": "overlay"},
    }


def test_each_engine_tells_where_images_are(tmp_path: Path) -> None:
    assert storage_folder(docker(tmp_path), HOST) == tmp_path
    assert storage_folder(podman(tmp_path), HOST) == tmp_path


def test_the_folder_of_another_machine_is_none_of_this_one(tmp_path: Path) -> None:
    """Of a daemon far away, or of the virtual machine of a desktop, or of the host a container runs on."""
    assert storage_folder(docker(tmp_path), "another") is None
    assert storage_folder(docker(tmp_path / "gone"), HOST) is None


@pytest.mark.parametrize(
    "address", ["/run/containerd/containerd.sock", "/var/run/docker/containerd/containerd.sock"]
)
def test_images_that_are_left_to_containerd_are_where_that_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    theirs = tmp_path / "containerd"
    theirs.mkdir()
    monkeypatch.setattr("harness.devices.host.container_service.CONTAINERD_FOLDER", theirs)
    store = [["driver-type", "io.containerd.snapshotter.v1"]]
    info = docker(tmp_path, DriverStatus=store, Containerd={"Address": address})
    assert storage_folder(info, HOST) == (theirs if address.startswith("/run/containerd") else tmp_path)


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


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int = 0) -> HostReport:
    """A host whose `docker` says this."""
    program = folder / "docker"
    (folder / "said").write_text(said)
    program.write_text(f'#!/bin/sh\ncat "{folder}/said"\nexit {code}\n')
    program.chmod(0o755)
    # However long a loaded machine takes to start it.
    monkeypatch.setattr("harness.devices.host.container_service.INFO_TIMEOUT_S", 300.0)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return inspect_host(
        HostView(dev=folder, environ={}, which=lambda name: name if name == "docker" else None)
    )


@pytest.mark.parametrize("said", ["", "[1]", "Client:\n Version: 20.10\n"])
def test_an_engine_that_answers_in_another_way_is_there_and_keeps_images_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    installed(tmp_path, monkeypatch, said)
    assert query_engine("docker") == EngineState(name="docker")


def storage(host: HostReport, free: int, engine: str = "venv") -> list[HostFinding]:
    room = DiskSpace(
        free=9 * GIB, needed=8 * GIB, free_on=lambda _folder: free, images=5 * GIB, engine=engine
    )
    return [one for one in examine_host(host, zig=True, disk=room) if one.topic == "image storage"]


def test_doctor_asks_for_room_where_images_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps(docker(tmp_path, Name=socket.gethostname()))
    host = installed(tmp_path, monkeypatch, said)
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
    # With cells built as its containers, the default profile cannot run.
    [chosen] = storage(host, GIB, engine="docker")
    assert chosen.health is Health.BROKEN


def test_doctor_says_nothing_of_images_that_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = installed(tmp_path, monkeypatch, json.dumps(docker(tmp_path, Name="far-away")))
    assert storage(host, 0) == []
    assert storage(installed(tmp_path, monkeypatch, "", code=1), 0) == []
