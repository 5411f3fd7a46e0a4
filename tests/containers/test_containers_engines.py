"""What every container engine must do, tested with real ones."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import BASE, REPOSITORY, base_name, program
from daemon import Daemon, image_history

from harness.builds.cleanup.cleanup_candidates import (
    CleanupPolicy,
    judge_engine_resources,
    removal_order,
    remove_candidate,
)
from harness.builds.engines import container_run
from harness.builds.engines.container_command import contained_command
from harness.builds.engines.container_run import run_contained
from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.engines.engine import BUILD_TIME_FOLDER, BuildError, BuildTimeFiles, ContainerSpec, Mount
from harness.builds.engines.image_build import BuiltImage, build_image, find_base_image
from harness.builds.engines.image_layers import READ_SETTINGS, Layer
from harness.builds.engines.podman_engine import PodmanEngine
from harness.builds.ownership.owner_labels import ProcessView, make_labels, this_process
from harness.cell_program.built_environment import CellContainer
from harness.digest import digest_bytes
from harness.errors import InfrastructureError, InputError

SECRET = "hunter2-in-a-mirror-url"
COUNT = iter(range(1000))


def labels(key: str = "k") -> dict[str, str]:
    return make_labels(owner=this_process(), expires=time.time() + 600, key=key, run="a-test")


def layer(*commands: str, files: dict[str, bytes] | None = None) -> Layer:
    key = f"test{os.getpid()}x{next(COUNT)}"
    return Layer(name="probe", key=key, below="", files=files or {}, commands=commands)


def built(engine: Any, layers: list[Layer], folder: Path, lent: BuildTimeFiles | None = None) -> BuiltImage:
    lines: list[str] = []
    base = find_base_image(engine, base_name(engine), "x86_64")
    return build_image(
        engine,
        base,
        layers,
        build_files=lent or BuildTimeFiles(),
        labels=labels(),
        locks=folder,
        log=lines.append,
    )


def order(engine: Any, image: str, *argv: str, **changes: Any) -> ContainerSpec:
    name = f"npu-matrix-test-{os.getpid()}-{next(COUNT)}"
    return replace(ContainerSpec(name=name, image=image, argv=argv, labels=labels()), **changes)


def left(engine: Any) -> list[str]:
    return [resource.name for resource in engine.resources() if resource.kind == "container"]


def run(engine: Any, image: str, *argv: str, **changes: Any) -> tuple[int, bool, str]:
    said = bytearray()
    ended = run_contained(engine, order(engine, image, *argv, **changes), threading.Event(), said.extend)
    return ended.code, ended.out_of_memory, said.decode()


def everything(engine: Any, image: str) -> bytes:
    """The files of all layers and the configuration of an image, as they would be pushed."""
    if engine.name == "podman":
        return image_history(engine, image).encode()
    stream = bytes(b"".join(engine.client.api.get_image(image)))
    found = stream
    with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
        for member in archive:
            if member.name.endswith("layer.tar") and (opened := archive.extractfile(member)):
                found += opened.read()
    return found + image_history(engine, image).encode()


def lent(folder: Path) -> BuildTimeFiles:
    links = folder / f"links-{SECRET}"
    links.mkdir()
    (links / "a.txt").write_text(SECRET)
    secrets = {
        "settings": f"UV_DEFAULT_INDEX='https://u:{SECRET}@m.example'\n".encode(),
        "ca.pem": SECRET.encode(),
    }
    return BuildTimeFiles(
        secrets=secrets, mounts=(Mount(source=links, target=f"{BUILD_TIME_FOLDER}/folder-1"),)
    )


def test_a_layer_is_built_from_what_is_lent_and_keeps_nothing_of_it(engine: Any, tmp_path: Path) -> None:
    one = layer(
        READ_SETTINGS,
        "[[ $UV_DEFAULT_INDEX == *m.example ]]",
        f"test -s {BUILD_TIME_FOLDER}/ca.pem",
        f"test -s {BUILD_TIME_FOLDER}/folder-1/a.txt",
        "cat /cell/given.txt > /cell/made.txt",
        files={"/cell/given.txt": b"given\n"},
    )
    layers = [one, layer("grep given /cell/made.txt")]
    made = built(engine, layers, tmp_path, lent(tmp_path))
    assert made.built == ("probe", "probe")
    assert SECRET.encode() not in everything(engine, made.image.id)
    assert engine.copy_out(made.image.id, "/cell", tmp_path / "out")
    assert (tmp_path / "out/made.txt").read_text() == "given\n"
    assert not engine.copy_out(made.image.id, "/nowhere", tmp_path / "out")
    assert built(engine, layers, tmp_path).reused == ("probe", "probe")
    assert left(engine) == []


def test_buildkit_keeps_nothing_of_what_is_lent(docker_host: str, tmp_path: Path) -> None:
    folder = Path(program("docker")).parent
    engine = DockerEngine({"DOCKER_HOST": docker_host, "PATH": f"{folder}:/usr/bin:/bin"})
    if engine.builder != "buildkit":
        engine.close()
        pytest.skip("no client here can build with BuildKit")
    installer = tmp_path / "tool"
    installer.write_text("the-lent-installer\n")
    given = BuildTimeFiles(
        secrets={"settings": f"A={SECRET}\n".encode()},
        mounts=(Mount(source=installer, target=f"{BUILD_TIME_FOLDER}/tool"),),
    )
    made = built(
        engine,
        [layer(READ_SETTINGS, 'test -n "$A"', f"grep -q lent-installer {BUILD_TIME_FOLDER}/tool")],
        tmp_path,
        given,
    )
    assert SECRET.encode() not in everything(engine, made.image.id)
    assert b"the-lent-installer" not in everything(engine, made.image.id)
    engine.close()


def test_a_seeded_leak_would_be_found(docker: DockerEngine, tmp_path: Path) -> None:
    made = built(docker, [layer(f"cp {BUILD_TIME_FOLDER}/settings /cell-settings")], tmp_path, lent(tmp_path))
    assert SECRET.encode() in everything(docker, made.image.id)


def test_a_layer_that_fails_is_named_with_its_output(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        built(engine, [layer("echo what went wrong >&2", "false")], tmp_path)
    assert "what went wrong" in caught.value.tail
    assert left(engine) == []


def test_exit_codes_output_and_memory(engine: Any, tmp_path: Path) -> None:
    image = find_base_image(engine, base_name(engine), "x86_64").id
    code, _oom, said = run(engine, image, "bash", "-c", "echo out; echo err >&2; exit 7")
    assert (code, sorted(said.split())) == (7, ["err", "out"])
    code, oom, _said = run(
        engine, image, "python3", "-c", "print(len(bytearray(1 << 30)))", memory_bytes=64 << 20
    )
    assert code == 137
    assert oom or engine.name == "podman"
    code, _oom, said = run(engine, image, "df", "--output=size", "/dev/shm", shm_bytes=64 << 20)
    assert "65536" in said
    assert left(engine) == []


def test_a_log_is_capped(docker: DockerEngine) -> None:
    image = find_base_image(docker, BASE, "x86_64").id
    flood = order(docker, image, "bash", "-c", "yes | head -c 6000000", log_bytes=1 << 20)
    container = docker.start(flood)
    assert docker.wait(container, 300.0) is not None
    kept = sum(len(chunk) for chunk in docker.client.api.logs(container, stream=True))
    for resource in docker.resources():
        if resource.kind == "container":
            docker.remove(resource)
    assert 0 < kept <= 2 << 20


HANG = """
import time
def stuck_in_a_collective():
    print("here", flush=True)
    time.sleep(600)
stuck_in_a_collective()
"""


def test_a_hang_says_where_and_is_gone(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long, because sending a signal into a container takes long on a loaded machine.
    monkeypatch.setattr(container_run, "STACK_SECONDS", 120.0)
    image = find_base_image(engine, base_name(engine), "x86_64").id
    said, stopped = bytearray(), threading.Event()

    def hear(data: bytes) -> None:
        said.extend(data)
        if b"here" in said:
            stopped.set()

    wanted = order(
        engine,
        image,
        *("/bin/bash", "-c", '"$@"; exit $?', "cell", "python3", "-c", HANG),
        env={"PYTHONFAULTHANDLER": "1"},
    )
    ended = run_contained(engine, wanted, stopped, hear)
    assert ended.code != 0
    assert "stuck_in_a_collective" in said.decode()
    assert left(engine) == []


def driver(docker_host: str, image: str, folder: Path, *argv: str) -> tuple[list[str], dict[str, str]]:
    (folder / "bytecode").mkdir(exist_ok=True)
    container = CellContainer(engine="docker", image=image, cell="a-cell", bytecode=str(folder / "bytecode"))
    environ = {"DOCKER_HOST": docker_host}
    command, variables = contained_command(container, argv, {}, needed=(), has_npu=False, environ=environ)
    return command, {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)}


def running(engine: DockerEngine) -> None:
    deadline = time.monotonic() + 300
    while not any(resource.running for resource in engine.resources()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def reap(engine: DockerEngine) -> list[str]:
    found = judge_engine_resources(engine.resources(), CleanupPolicy(), ProcessView())
    return [
        one.name
        for one in removal_order(found)
        if remove_candidate(one, engine) == "" and one.kind == "container"
    ]


def test_a_driver_that_is_killed_leaves_what_cleanup_finds(
    docker: DockerEngine, docker_host: str, tmp_path: Path
) -> None:
    image = find_base_image(docker, BASE, "x86_64").id
    command, environ = driver(docker_host, image, tmp_path, "sleep", "600")
    process = subprocess.Popen(command, env=environ, cwd=tmp_path)
    running(docker)
    assert reap(docker) == []
    process.kill()
    process.wait()
    assert len(reap(docker)) == 1
    assert left(docker) == []


def test_a_driver_that_is_asked_to_stop_leaves_nothing(
    docker: DockerEngine, docker_host: str, tmp_path: Path
) -> None:
    image = find_base_image(docker, BASE, "x86_64").id
    command, environ = driver(docker_host, image, tmp_path, "python3", "-c", HANG)
    process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert "stuck_in_a_collective" in said
    assert left(docker) == []


def test_a_command_ends_the_driver_as_it_ended(
    docker: DockerEngine, docker_host: str, tmp_path: Path
) -> None:
    image = find_base_image(docker, BASE, "x86_64").id
    for program_text, expected in (
        ("import sys; sys.exit(3)", 3),
        ("import os; os.abort()", -signal.SIGABRT),
    ):
        command, environ = driver(docker_host, image, tmp_path, "python3", "-c", program_text)
        assert subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True).returncode == expected
    container = CellContainer(engine="docker", image=image, cell="c", bytecode=str(tmp_path / "bytecode"))
    limited = {"DOCKER_HOST": docker_host, "NPU_MATRIX_CELL_MEMORY": "64m"}
    greedy = ["python3", "-c", "bytearray(1 << 30)"]
    command, variables = contained_command(container, greedy, {}, needed=(), has_npu=False, environ=limited)
    done = subprocess.run(command, env={**environ, **variables}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert "killed for its memory limit of 0.1 GiB" in done.stdout
    assert left(docker) == []


def test_a_daemon_that_restarts_leaves_no_container(
    daemon: Daemon, docker: DockerEngine, docker_host: str, tmp_path: Path
) -> None:
    image = find_base_image(docker, BASE, "x86_64").id
    command, environ = driver(docker_host, image, tmp_path, "sleep", "600")
    process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    running(docker)
    docker.close()
    daemon.stop()
    daemon.start()
    process.communicate(timeout=300)
    reap(docker)
    assert process.returncode != 0
    assert left(docker) == []


def test_no_daemon_and_no_permission_are_named(docker_host: str, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as nobody:
        DockerEngine({"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}).info()
    assert "does not respond" in str(nobody.value)
    program_text = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from harness.builds.engines.docker_engine import DockerEngine\n"
        # Import it now: a user without permissions may not be able to read the modules later.
        "DockerEngine({'DOCKER_HOST': sys.argv[2]}).info()\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    DockerEngine({'DOCKER_HOST': sys.argv[2]}).info()\n"
        "except Exception as error:\n    print(error)\n"
    )
    socket = Path(docker_host.removeprefix("unix://"))
    socket.parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program_text, str(REPOSITORY), docker_host], capture_output=True, text=True
    )
    assert "no permission to use docker" in done.stdout, done.stderr
    assert "podman" in done.stdout


def test_a_foreign_architecture_and_an_unknown_base_are_named(docker: DockerEngine) -> None:
    docker.client.api.load_image(empty_image("foreign:1", "arm64"))
    with pytest.raises(InputError) as foreign:
        find_base_image(docker, "foreign:1", "x86_64")
    assert "aarch64" in str(foreign.value)
    with pytest.raises(InfrastructureError) as unknown:
        find_base_image(docker, "localhost:1/ascend/cann:9", "x86_64")
    assert "cannot be pulled" in str(unknown.value)


def test_a_base_image_without_a_shell_is_named(docker: DockerEngine, tmp_path: Path) -> None:
    docker.client.images.load(empty_image("bare:1", "amd64"))
    base = find_base_image(docker, "bare:1", "x86_64")
    with pytest.raises(InfrastructureError, match="the base image has no bash"):
        build_image(
            docker,
            base,
            [layer("true")],
            build_files=BuildTimeFiles(),
            labels=labels(),
            locks=tmp_path,
            log=lambda _text: None,
        )
    assert not left(docker)
    docker.client.images.remove("bare:1")


def empty_image(name: str, arch: str) -> bytes:
    """An image without files, in the format of `docker save`."""
    layer_tar = io.BytesIO()
    tarfile.open(fileobj=layer_tar, mode="w").close()
    digest = f"sha256:{digest_bytes(layer_tar.getvalue())}"
    config = {"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "layer.tar": layer_tar.getvalue(),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for file, data in files.items():
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def test_podman_that_is_not_there_is_named() -> None:
    with pytest.raises(InfrastructureError) as caught:
        PodmanEngine({"PATH": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent", "CONTAINER_HOST": ""}).info()
    assert "podman" in str(caught.value)


def test_shared_layers_are_counted_once(docker: DockerEngine, tmp_path: Path) -> None:
    """Of two images with a layer in common, each counts what only it has."""
    common = layer("head -c 8000000 /dev/urandom > /cell-common")
    tops = [layer(f"head -c 1000000 /dev/urandom > /cell-top-{number}") for number in range(2)]
    images = [built(docker, [common, top], tmp_path).image.id for top in tops]
    own = {resource.id: resource.bytes for resource in docker.resources() if resource.kind == "image"}
    assert all(1_000_000 <= own[image] < 2_000_000 for image in images), own


def test_labels_are_on_everything(docker: DockerEngine, tmp_path: Path) -> None:
    made = built(docker, [layer("true")], tmp_path)
    assert made.image.labels["npu-matrix.run"] == "a-test"
    assert made.image.labels["npu-matrix.parent"] == made.base.id
    container = docker.start(order(docker, made.image.id, "true"))
    docker.wait(container, 10)
    [resource] = [resource for resource in docker.resources() if resource.kind == "container"]
    assert {"npu-matrix.owner", "npu-matrix.expires", "npu-matrix.key", "npu-matrix.run"} <= set(
        resource.labels
    )
    docker.remove(resource)
