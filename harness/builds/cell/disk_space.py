"""Checks that there is disk space for an environment before its packages are downloaded.

A full disk makes all other tasks fail too. The check uses a lower bound, the unpacked size of the large
packages of a lock, so it refuses only what cannot fit. An environment that does not fit although the check
passed fails during installation and is removed.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.builds.engines.engine import Engine
from harness.builds.engines.image_build import missing_layers
from harness.builds.engines.image_layers import Layer
from harness.builds.lock.cell_lock import CellLock
from harness.builds.lock.layer_contents import layer_contents
from harness.devices.host.container_service import storage_remedy
from harness.errors import DiskSpaceError, Location
from harness.sources.packages.lockfile import LockedPackage

# The smallest unpacked size in MiB (sum of RECORD) of the releases in cells of verl 0.6.1 to 0.9.1 and vLLM
# 0.11.0 to 0.23.0; for torch it is the CPU build. The other packages of a cell take 200 to 700 MiB in total
# and are not counted.
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


def least_bytes(packages: Iterable[LockedPackage], arch: str | None = None) -> int:
    """A lower bound of the unpacked size of these packages; 0 for an architecture without measurements."""
    if (arch or platform.machine()) != MEASURED_ON:
        return 0
    return sum(LEAST_MIB.get(package.name, 0) for package in packages) * MIB


def require_disk_space(packages: Iterable[LockedPackage], cells: Path) -> None:
    """DiskSpaceError if the disk with the folder of environments has no space for these packages."""
    needed, free = least_bytes(packages), free_bytes(cells)
    if free < needed:
        raise DiskSpaceError(
            "there is not enough disk space for this cell's environment",
            where=Location(cells),
            why=f"its large packages need {needed / GIB:.1f} GiB, this disk has {free / GIB:.1f} GiB free",
            fix="free space (`npu-matrix cleanup --dry-run` lists what can be removed), or choose a larger "
            "disk with NPU_MATRIX_CACHE",
        )


def require_image_storage(engine: Engine, layers: Sequence[Layer], lock: CellLock) -> None:
    """DiskSpaceError if the disk with the engine's images has no space for the missing layers.

    Without effect when that disk is not known.
    """
    lacking = {layer.name for layer in missing_layers(engine, layers)}
    contents = [one for one in layer_contents(lock) if one.name in lacking]
    needed = sum(least_bytes(one.packages, lock.arch) for one in contents)
    folder = engine.storage() if needed else None
    if folder is None or free_bytes(folder) >= needed:
        return
    raise DiskSpaceError(
        f"there is not enough disk space for this cell's image where {engine.name} stores images",
        where=Location(folder),
        why=f"the large packages of the missing layers need {needed / GIB:.1f} GiB, "
        f"but this disk has {free_bytes(folder) / GIB:.1f} GiB free",
        fix=storage_remedy(engine.name),
    )


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """The folder or its nearest existing parent, which is on the same disk."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
