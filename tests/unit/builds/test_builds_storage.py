"""Disk space for images: an engine in memory whose storage is a mounted file system in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory_engine import MemoryEngine
from test_disk_space import ALL_MIB, LARGE, disk, only_measured
from test_image_layers import build, lock, package

from harness.builds.cell.disk_space import require_image_storage
from harness.builds.engines.engine import full_disk_error
from harness.builds.engines.image_build import find_base_image
from harness.builds.engines.image_layers import image_layers
from harness.builds.lock.cell_lock import CellLock
from harness.devices.host.container_service import storage_remedy
from harness.errors import EXIT_INCOMPLETE, InfrastructureError

__all__ = ["disk"]
CELL = lock(packages=tuple(package(one.name, "1") for one in LARGE))


class Asked(MemoryEngine):
    """An engine that counts the calls of `storage`."""

    asked = 0

    def storage(self) -> Path | None:
        self.asked += 1
        return super().storage()


@pytest.fixture
def engine() -> Asked:
    made = Asked()
    made.add_base("base:1")
    return made


def require(engine: MemoryEngine, cell: CellLock = CELL) -> None:
    require_image_storage(engine, image_layers(cell, find_base_image(engine, "base:1", "x86_64").id), cell)


@only_measured
def test_a_disk_that_cannot_take_the_layers_is_named_with_what_it_has(engine: Asked, disk: Any) -> None:
    engine.folder = disk("images", 300)
    with pytest.raises(InfrastructureError) as caught:
        require(engine)
    [problem] = caught.value.problems
    assert problem.what == "there is not enough disk space for this cell's image where memory stores images"
    assert str(engine.folder) in str(problem.where)
    assert f"{ALL_MIB / 1024:.1f} GiB, but this disk has 0.3 GiB free" in problem.why
    assert "npu-matrix cleanup" in problem.fix


@only_measured
def test_layers_that_stand_already_need_no_more_room(engine: Asked, disk: Any, tmp_path: Path) -> None:
    engine.folder = disk("images", 300)
    layers = image_layers(CELL, find_base_image(engine, "base:1", "x86_64").id)
    torch = next(number for number, layer in enumerate(layers, 1) if layer.name == "torch")
    build(engine, layers[:torch], tmp_path)
    with pytest.raises(InfrastructureError) as caught:
        require(engine)
    assert f"{ALL_MIB / 1024:.1f} GiB" not in str(caught.value)
    build(engine, layers, tmp_path)
    require(engine)


def test_small_layers_and_unknown_architectures_and_disks_are_not_asked_for(engine: Asked) -> None:
    require(engine, lock(packages=(package("filelock", "1"),)))
    require(engine, lock(packages=CELL.packages, arch="riscv64"))
    assert engine.asked == 0
    engine.folder = None
    require(engine)


def test_a_full_disk_of_an_engine_keeps_its_own_remedy() -> None:
    """Another folder for the cache, the usual remedy for a full disk, would not help."""
    error = full_disk_error("docker", "store a layer", "write x: no space left on device")
    assert error.problems[0].fix == storage_remedy("docker")
    assert (error.exit_code, error.disk_full) == (EXIT_INCOMPLETE, True)
