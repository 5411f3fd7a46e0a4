"""Engines that cannot be used: the error names the engine and a fix. Real daemons: tests/containers."""

from __future__ import annotations

import errno
import http.server
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_engine import MemoryEngine

from harness.builds.engines.engine import BuildTimeFiles, EngineResource, no_permission_error
from harness.builds.engines.image_build import base_notices, build_image, find_base_image
from harness.builds.engines.image_layers import Layer
from harness.errors import HarnessError, InfrastructureError, InputError


@pytest.fixture
def sdk() -> SimpleNamespace:
    """The modules that need the Docker SDK."""
    pytest.importorskip("docker.errors", reason="the Docker SDK is not installed: nox -s containers")
    from harness.builds.engines import docker_engine, podman_engine, sdk_engine

    return SimpleNamespace(docker_engine=docker_engine, podman_engine=podman_engine, sdk_engine=sdk_engine)


@pytest.fixture
def memory() -> MemoryEngine:
    engine = MemoryEngine()
    engine.add_base("base:1")
    return engine


def said(error: HarnessError) -> str:
    assert error.problems[0].fix
    return str(error)


def test_a_daemon_that_is_not_there(memory: MemoryEngine):
    memory.running = False
    with pytest.raises(InfrastructureError) as caught:
        memory.info()
    assert "does not respond" in said(caught.value)
    assert "need no daemon" in said(caught.value)


def test_a_user_who_may_not():
    text = said(no_permission_error("docker", "unix:///var/run/docker.sock", "PermissionError(13)"))
    assert "no permission to use docker" in text
    assert "join the group" in text


def test_a_base_image_for_other_machines(memory: MemoryEngine):
    memory.add_base("foreign:1", arch="aarch64")
    with pytest.raises(InputError) as caught:
        find_base_image(memory, "foreign:1", "x86_64")
    assert "is for aarch64, the cell is for x86_64" in said(caught.value)


def test_a_base_image_that_cannot_be_had_says_how_to_bring_one(memory: MemoryEngine):
    with pytest.raises(InfrastructureError) as caught:
        find_base_image(memory, "ascend/cann:9", "x86_64")
    assert "cannot be pulled" in said(caught.value)
    assert "--base-image NAME@sha256:" in said(caught.value)


def test_a_base_image_without_a_digest_is_used_and_told(memory: MemoryEngine):
    [notice] = base_notices("base:1", find_base_image(memory, "base:1", "x86_64"))
    assert "no registry digest" in notice
    assert "refer to it by digest" in notice


def test_a_digest_of_this_host_alone_is_none_of_a_registry(sdk: SimpleNamespace):
    facts = {"Id": "sha256:a", "Architecture": "amd64", "RepoDigests": ["localhost/base@sha256:b"]}
    assert base_notices("localhost/base:1", sdk.sdk_engine._read_image(facts))
    facts["RepoDigests"].append("localhost:5000/base@sha256:b")
    assert not base_notices("localhost/base:1", sdk.sdk_engine._read_image(facts))


def test_a_daemon_whose_disk_is_full_and_builds_again_with_room(memory: MemoryEngine, tmp_path: Path):
    base = find_base_image(memory, "base:1", "x86_64")
    layers = [
        Layer(name=name, key=name, below="", files={f"/{name}": b"x" * 100}, commands=())
        for name in ("torch", "vllm", "verl")
    ]
    memory.free_bytes = 250

    def build() -> tuple[str, ...]:
        return build_image(
            memory,
            base,
            layers,
            build_files=BuildTimeFiles(),
            labels={},
            locks=tmp_path,
            log=lambda _text: None,
        ).built

    with pytest.raises(InfrastructureError) as caught:
        build()
    assert "its disk is full" in said(caught.value)
    assert "npu-matrix cleanup" in said(caught.value)
    memory.free_bytes = 1000
    assert build() == ("verl",)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """The part of Docker's API that reports the daemon's host."""

    name = "another-machine"
    arch: Mapping[str, str] = {"Arch": "amd64"}

    def do_GET(self) -> None:
        answers = {
            "/version": {"ApiVersion": "1.41", "Version": "20.10", **self.arch, "Os": "linux"},
            "/info": {"Name": self.name},
        }
        found = next((body for path, body in answers.items() if self.path.endswith(path)), None)
        data = json.dumps(found or {}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing in tests."""


@pytest.fixture
def daemon_on() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_daemon_on_another_machine_is_refused(sdk: SimpleNamespace, daemon_on: str):
    with pytest.raises(InfrastructureError) as caught:
        sdk.docker_engine.DockerEngine({"DOCKER_HOST": daemon_on}).info()
    assert f"docker at {daemon_on} runs on another host" in said(caught.value)
    assert "another-machine" in said(caught.value)
    assert "--executor ray" in said(caught.value)


def test_a_daemon_of_this_machine_may_be_spoken_to_by_tcp(
    sdk: SimpleNamespace, daemon_on: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Elsewhere, "name", socket.gethostname())
    engine = sdk.docker_engine.DockerEngine({"DOCKER_HOST": daemon_on})
    assert engine.info().arch == "x86_64"
    engine.close()


def test_what_takes_as_long_as_a_disk_is_given_longer_than_a_question(
    sdk: SimpleNamespace, daemon_on: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Elsewhere, "name", socket.gethostname())
    engine = sdk.docker_engine.DockerEngine({"DOCKER_HOST": daemon_on})
    api, given = engine.client.api, []
    monkeypatch.setattr(api, "remove_image", lambda _image: given.append(api.timeout))
    engine.remove(EngineResource(kind="image", id="sha256:1", name="", labels={}, created=0.0))
    engine.close()
    assert given == [sdk.sdk_engine.STORE_SECONDS]
    assert api.timeout == sdk.sdk_engine.CALL_SECONDS < sdk.sdk_engine.STORE_SECONDS


def test_a_service_that_is_nearly_dockers_is_named_as_one_nobody_understands(
    sdk: SimpleNamespace, daemon_on: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Elsewhere, "name", socket.gethostname())
    monkeypatch.setattr(Elsewhere, "arch", {})
    engine = sdk.docker_engine.DockerEngine({"DOCKER_HOST": daemon_on})
    with pytest.raises(InfrastructureError) as caught:
        engine.info()
    engine.close()
    assert "its response has an unknown form" in said(caught.value)
    assert daemon_on in said(caught.value)


def test_a_full_disk_of_this_machine_is_not_told_as_a_daemon_that_does_not_answer(sdk: SimpleNamespace):
    engine = sdk.docker_engine.DockerEngine({"DOCKER_HOST": "unix:///nonexistent"})
    with pytest.raises(InfrastructureError) as caught, engine._errors("copy files out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "does not respond" not in said(caught.value)
    assert "No space left on device" in said(caught.value)


def test_ssh_leads_to_another_machine(sdk: SimpleNamespace):
    for engine in (
        sdk.docker_engine.DockerEngine({"DOCKER_HOST": "ssh://u@host"}),
        sdk.podman_engine.PodmanEngine({"CONTAINER_HOST": "ssh://u@host"}),
    ):
        with pytest.raises(InfrastructureError) as caught:
            engine.info()
        assert "runs on another host" in said(caught.value)


def test_words_of_a_full_disk_are_told_from_a_cell_that_cannot_be_built(sdk: SimpleNamespace):
    tail = "Downloading torch\nerror: failed to write: No space left on device (os error 28)\n"
    full = sdk.sdk_engine.storage_failure("docker", "build a layer", tail)
    assert full is not None
    assert "docker could not build a layer: its disk is full" in said(full)
    other = sdk.sdk_engine.storage_failure(
        "docker", "build a layer", "OSError: [Errno 24] Too many open files"
    )
    assert other is not None
    assert "its disk is full" not in str(other)
    assert sdk.sdk_engine.storage_failure("docker", "build a layer", "error: command 'gcc' failed") is None
