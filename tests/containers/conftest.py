"""Tests with a real container engine: a private Docker daemon, and a base image made of Debian packages.

`nox -s containers` runs them; the comparison of cells needs `nox -s npu_e2e` first. They need root, Debian's
`docker.io` and `mmdebstrap`, and `podman` for the tests of podman. A test reports what is missing. The daemon
has its own socket and data root and is stopped afterwards; NPU_MATRIX_TEST_DOCKER selects another daemon.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("docker.errors", reason="the Docker SDK is not installed: nox -s containers")

from daemon import Daemon, NoDaemonError
from missing_programs import missing, required_program

from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.engines.podman_engine import PodmanEngine

REPOSITORY = Path(__file__).parents[2]
BASE = "npu-matrix-base:bookworm"
PACKAGES = "bash,ca-certificates,coreutils,libgomp1,libstdc++6,patch,python3"


def pytest_configure(config: pytest.Config) -> None:
    # The SDK does not close the sockets of streams that it has read to the end.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The time of the last test that uses an engine includes the removal of its storage.
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


def program(name: str) -> str:
    return required_program(name, "docker.io mmdebstrap podman")


@contextlib.contextmanager
def own_daemon(prepare: Callable[[Path], None] = lambda _: None) -> Iterator[Daemon]:
    """A Docker daemon in a new folder; `prepare` is called with the folder before the daemon starts."""
    if os.getuid() != 0:
        missing("a Docker daemon is started by root")
    folder = Path(tempfile.mkdtemp(prefix="npu-matrix-docker-"))
    made = Daemon(folder)
    try:
        prepare(folder)
        try:
            made.start()
        except NoDaemonError as error:
            missing(str(error))
        yield made
    finally:
        made.stop()
        clear(folder)


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with own_daemon() as made:
        yield made


@pytest.fixture(scope="session")
def base_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system made of Debian packages, built in memory because it has thousands of small files.

    NPU_MATRIX_BASE_TAR selects an existing one.
    """
    if given := os.environ.get("NPU_MATRIX_BASE_TAR"):
        return Path(given)
    tar = tmp_path_factory.mktemp("base") / "base.tar"
    memory = tmp_path_factory.mktemp("memory")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(memory)], check=True)
    try:
        argv = [program("mmdebstrap"), "--quiet", "--variant=essential", f"--include={PACKAGES}", "bookworm"]
        argv += ["--aptopt=Acquire::Retries 5", str(tar)]
        environ = {**os.environ, "TMPDIR": str(memory)}
        # A mirror can fail while it is updated.
        for _attempt in range(3):
            done = subprocess.run(argv, env=environ, capture_output=True, text=True)
            if done.returncode == 0:
                break
            tar.unlink(missing_ok=True)
        else:
            missing(f"Debian's packages cannot be had: {done.stderr[-2000:]}")
    finally:
        subprocess.run(["umount", str(memory)], check=False)
    return tar


def clear(folder: Path) -> None:
    """Remove an engine's storage; first unmount everything below it, because podman leaves mounts there."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", place], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    assert not folder.exists(), f"{folder} could not be removed"


def load(tar: Path, argv: list[str], environ: dict[str, str]) -> None:
    subprocess.run([*argv, "import", str(tar), BASE], env=environ, check=True, capture_output=True)


@pytest.fixture(scope="session")
def docker_host(request: pytest.FixtureRequest) -> str:
    """The address of the daemon for these tests, which has the base image."""
    address = os.environ.get("NPU_MATRIX_TEST_DOCKER") or request.getfixturevalue("daemon").address
    environ = {**os.environ, "DOCKER_HOST": address}
    known = subprocess.run(
        [program("docker"), "image", "inspect", BASE], env=environ, capture_output=True, check=False
    )
    if known.returncode:
        load(request.getfixturevalue("base_tar"), [program("docker")], environ)
    return str(address)


@pytest.fixture
def docker(docker_host: str) -> Iterator[DockerEngine]:
    """Docker, which builds layers without BuildKit."""
    engine = DockerEngine({"DOCKER_HOST": docker_host, "PATH": "/nonexistent"})
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def podman_environ(base_tar: Path) -> Iterator[dict[str, str]]:
    """Podman with separate storage, and with limits that do not have to be raised."""
    folder = Path(tempfile.mkdtemp(prefix="npu-matrix-podman-"))
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    environ = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    load(base_tar, [program("podman")], environ)
    yield environ
    clear(folder)


@pytest.fixture
def podman(podman_environ: dict[str, str]) -> Iterator[PodmanEngine]:
    engine = PodmanEngine(podman_environ)
    yield engine
    engine.close()


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def base_name(engine: Any) -> str:
    return f"localhost/{BASE}" if engine.name == "podman" else BASE
