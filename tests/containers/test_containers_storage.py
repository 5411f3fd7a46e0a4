"""Where real engines store images, and that a disk without space is reported before a build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, own_daemon
from daemon import Daemon

from harness.builds.cell.disk_space import MEASURED_ON, require_image_storage
from harness.builds.engines.docker_engine import DockerEngine
from harness.builds.engines.image_layers import image_layers
from harness.builds.lock.cell_lock import LockFacets, make_lock
from harness.errors import InfrastructureError
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet

LOCK = """\
torch==2.9.0 --hash=sha256:aa
    # via -r requirements.in
verl==0.9.1 --hash=sha256:bb
    # via -r requirements.in
"""


def test_an_engine_tells_where_it_keeps_images(engine: Any, request: pytest.FixtureRequest) -> None:
    if engine.name == "podman":
        settings = Path(request.getfixturevalue("podman_environ")["CONTAINERS_STORAGE_CONF"])
        assert engine.storage() == settings.parent / "graph"
    elif os.environ.get("NPU_MATRIX_TEST_DOCKER"):
        assert engine.storage() is None or engine.storage().is_dir()
    else:
        assert engine.storage() == request.getfixturevalue("daemon").folder / "data"


def _small_data(folder: Path) -> None:
    (folder / "data").mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(folder / "data")],
        check=True,
    )


@pytest.fixture
def small_daemon() -> Iterator[Daemon]:
    """A daemon whose data root is a file system of 300 MiB."""
    with own_daemon(_small_data) as made:
        yield made


@pytest.mark.skipif(os.uname().machine != MEASURED_ON, reason=f"sizes are known on {MEASURED_ON} only")
def test_a_data_root_without_room_is_named_before_a_build_and_by_doctor(small_daemon: Daemon) -> None:
    facets = LockFacets(pins=PinsFacet(), platform=PlatformFacet(python="3.11", arch=MEASURED_ON))
    lock = make_lock(facets, LOCK, cell="a-cell", title="a cell", axes={})
    docker = DockerEngine({"DOCKER_HOST": small_daemon.address, "PATH": "/nonexistent"})
    with pytest.raises(InfrastructureError) as caught:
        require_image_storage(docker, image_layers(lock, "sha256:0"), lock)
    docker.close()
    [problem] = caught.value.problems
    assert problem.what == "there is not enough disk space for this cell's image where docker stores images"
    assert str(problem.where) == str(small_daemon.folder / "data")
    assert "need 0.6 GiB, but this disk has 0.3 GiB free" in problem.why
    assert "`data-root` in daemon.json" in problem.fix

    environ = {**os.environ, "DOCKER_HOST": small_daemon.address, "NPU_MATRIX_ENGINE": "docker"}
    argv = [sys.executable, "-m", "harness", "doctor", "--json"]
    done = subprocess.run(argv, env=environ, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    # If podman is installed too, it stores its images elsewhere.
    [found] = [one for one in json.loads(done.stdout)["findings"] if "docker stores images" in one["what"]]
    assert (found["topic"], found["health"]) == ("image storage", "broken")
    assert f"({small_daemon.folder / 'data'})" in found["what"]
    assert "`data-root` in daemon.json" in found["fix"]
