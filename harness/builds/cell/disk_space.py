"""Is there room for an environment? Asked before its packages are fetched: a full disk stops all other tasks.

What is asked for is the least that the large packages of a lock unpack to. It refuses only what cannot fit;
what does not fit all the same fails while it is installed, and is removed.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from harness.builds.engines.engine import Engine
from harness.builds.engines.image_build import missing_layers
from harness.builds.engines.image_layers import Layer
from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.layer_contents import layer_contents
from harness.devices.host.container_service import storage_remedy
from harness.errors import InfrastructureError, Location
from harness.sources.packages.lockfile import LockedPackage

# The least MiB that a release unpacks to (sum of RECORD), among those in cells of verl 0.6.1 to 0.9.1 and
# vLLM 0.11.0 to 0.23.0; of torch that is its build for the CPU. The other packages of such a cell take 200 to
# 700 MiB together; they are not counted.
LEAST_MIB = {
    "torch": 660,
    "triton": 530,
    "ray": 190,
    "pyarrow": 150,
    "opencv-python-headless": 130,
    "llvmlite": 125,
    "scipy": 105,
    "torch-npu": 70,
    "vllm-ascend": 70,
    "cmake": 70,
    "numpy": 55,
    "wandb": 50,
    "transformers": 40,
    "pandas": 35,
}
MEASURED_ON = "x86_64"
MIB, GIB = 1 << 20, 1 << 30
# How uv fills an environment where it is told to; otherwise both share the blocks of a file.
COPIES = "copy"


def least_bytes(packages: Iterable[LockedPackage], arch: str | None = None) -> int:
    """What these packages unpack to at least; 0 for an architecture on which nobody has measured it."""
    if (arch or platform.machine()) != MEASURED_ON:
        return 0
    return sum(LEAST_MIB.get(package.name, 0) for package in packages) * MIB


def require_disk_space(
    packages: Collection[LockedPackage],
    *,
    cells: Path,
    wheels: Path,
    link_mode: str = "",
    is_cached: Callable[[LockedPackage], bool],
) -> None:
    """InfrastructureError when a disk cannot take what these packages unpack to.

    cells: where environments are. wheels: the installer's cache, of which an environment on the same disk
    takes no copy unless `link_mode` is `copy`. is_cached: whether that cache has a package; it is asked only
    where the room would not do without it.
    """
    one_disk = _existing(cells).stat().st_dev == _existing(wheels).stat().st_dev
    copied = () if one_disk and link_mode != COPIES else packages
    if not _lacking(packages, copied, cells, wheels, one_disk=one_disk):
        return
    fetched = [package for package in packages if package.name in LEAST_MIB and not is_cached(package)]
    for folder, needed in _lacking(fetched, copied, cells, wheels, one_disk=one_disk):
        free = free_bytes(folder)
        raise InfrastructureError(
            "there is no room for this cell's environment",
            where=Location(folder),
            why=f"its large packages unpack to {needed / GIB:.1f} GiB, this disk has {free / GIB:.1f} free",
            fix="see what can go (`npu-matrix cleanup --dry-run`), or name folders on a larger disk: "
            "NPU_MATRIX_CACHE for environments, UV_CACHE_DIR for packages",
        )


def require_image_storage(engine: Engine, layers: Sequence[Layer], lock: CellLock) -> None:
    """InfrastructureError when the disk of an engine's images cannot take the layers it lacks.

    Nothing is asked where nobody can tell which disk that is.
    """
    lacking = {layer.name for layer in missing_layers(engine, layers)}
    contents = [one for one in layer_contents(lock) if one.name in lacking]
    needed = sum(least_bytes(one.packages, lock.arch) for one in contents)
    folder = engine.storage() if needed else None
    if folder is None or free_bytes(folder) >= needed:
        return
    raise InfrastructureError(
        f"there is no room for this cell's image where {engine.name} keeps images",
        where=Location(folder),
        why=f"the large packages of the layers it lacks unpack to {needed / GIB:.1f} GiB, "
        f"this disk has {free_bytes(folder) / GIB:.1f} free",
        fix=storage_remedy(engine.name),
    )


def _lacking(
    fetched: Iterable[LockedPackage],
    copied: Iterable[LockedPackage],
    cells: Path,
    wheels: Path,
    *,
    one_disk: bool,
) -> list[tuple[Path, int]]:
    """The folders whose disk has less room than is needed there, in bytes."""
    needed = [(wheels, least_bytes(fetched)), (cells, least_bytes(copied))]
    if one_disk:
        needed = [(cells, sum(size for _folder, size in needed))]
    return [one for one in needed if free_bytes(one[0]) < one[1]]


def free_bytes(folder: Path) -> int:
    """What is free on the disk of a folder that is there, or will be."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there: it has the same disk."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())
