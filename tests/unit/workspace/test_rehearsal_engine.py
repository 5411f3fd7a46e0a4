"""The image that stands for CANN's: its name, its content, and what it must not be taken for."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from harness.devices.sim.runtime_build.stand_in_cann import STAND_IN, library_folder, write_cann
from harness.devices.stand_in.host_shapes import SHAPES
from harness.devices.stand_in.host_tree import StandIn
from harness.errors import InfrastructureError
from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.workspace.execution import rehearsal_engine
from harness.workspace.execution.rehearsal_engine import _cann_archive, cann_images, engine_on_stand_in

HOST = StandIn(shape=SHAPES["a2"], cann="8.5.0")


def test_each_row_has_the_image_that_ascend_publishes_for_it() -> None:
    cells = [
        one for one in load_matrix(shipped_file("matrix.yaml")).cells("rows").cells if one.device == "npu"
    ]
    images = cann_images(cells, "")
    assert len(images) == len({image.reference for image in images})
    for image in images:
        assert image.reference.startswith("quay.io/ascend/cann:")
        assert image.system == f"python:{image.reference.rpartition('-py')[2]}-slim"
    assert {image.system for image in cann_images(cells, "mine:1")} == {"mine:1"}


def test_the_image_has_a_marked_cann_without_a_driver_and_is_the_same_each_time() -> None:
    archive = _cann_archive(HOST)
    assert archive == _cann_archive(HOST)
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = opened.getnames()
        marker = opened.extractfile(f"cann-8.5.0/{STAND_IN}")
        assert marker is not None
        assert json.loads(marker.read())["simulated"] is True
    assert "ascend-toolkit/set_env.sh" in names
    assert not [name for name in names if name.startswith("driver")]


def test_libraries_are_taken_from_a_stand_in_only(tmp_path: Path) -> None:
    write_cann(tmp_path, "8.3.RC1", "Ascend910B3", 8)
    latest = tmp_path / "ascend-toolkit/latest"
    assert library_folder({"ASCEND_TOOLKIT_HOME": str(latest)}) == tmp_path / "ascend-toolkit/8.3.RC1/lib64"
    (latest / STAND_IN).unlink()
    for environ in ({"ASCEND_TOOLKIT_HOME": str(latest)}, {}):
        with pytest.raises(InfrastructureError, match="not a stand-in"):
            library_folder(environ)


def test_virtual_environments_need_no_engine(tmp_path: Path) -> None:
    with engine_on_stand_in("venv", tmp_path, HOST, (), print) as variables:
        assert variables == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("engine", "program"), [("docker", "dockerd"), ("podman", "podman")])
def test_an_engine_that_is_not_there_is_named(engine: str, program: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rehearsal_engine.shutil, "which", lambda _name, **_path: None)
    with (
        pytest.raises(InfrastructureError, match=f"no program {program}"),
        engine_on_stand_in(engine, tmp_path / "hosts/a2", HOST, (), print),
    ):
        pass
