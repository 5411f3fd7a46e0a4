"""Disk space for an environment, and full disks: file systems in memory that are mounted and filled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_disk import small_disk
from test_venv_environment import Cell

from harness.builds.cell import environment_files
from harness.builds.cell.disk_space import LEAST_MIB, MEASURED_ON, MIB, least_bytes, require_disk_space
from harness.errors import InfrastructureError
from harness.outcome import Status
from harness.sources.packages.lockfile import LockedPackage

LARGE = tuple(LockedPackage(name=name, version="1", hashes=()) for name in LEAST_MIB)
SMALL = LockedPackage(name="filelock", version="3", hashes=())
ALL_MIB = sum(LEAST_MIB.values())

only_measured = pytest.mark.skipif(
    os.uname().machine != MEASURED_ON, reason=f"sizes of packages are known on {MEASURED_ON} only"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Any]:
    """A function: `disk(name, MiB)` returns the folder of a new file system of that size."""
    with contextlib.ExitStack() as mounted:
        yield lambda name, size: mounted.enter_context(small_disk(tmp_path / name, size))


def test_small_packages_and_unknown_architectures_ask_for_nothing() -> None:
    assert least_bytes(LARGE, MEASURED_ON) == ALL_MIB * MIB
    assert least_bytes([SMALL], MEASURED_ON) == 0
    assert least_bytes(LARGE, "riscv64") == 0


@only_measured
def test_a_disk_that_cannot_take_the_packages_is_named_with_what_it_has(disk: Any) -> None:
    cache = disk("cache", 300)
    with pytest.raises(InfrastructureError) as caught:
        require_disk_space(LARGE, cache / "cells")
    [problem] = caught.value.problems
    assert "not enough disk space" in problem.what
    assert str(cache) in str(problem.where)
    assert f"{ALL_MIB / 1024:.1f} GiB, this disk has 0.3 GiB free" in problem.why
    assert "NPU_MATRIX_CACHE" in problem.fix
    require_disk_space([SMALL], cache / "cells")
    require_disk_space(LARGE, disk("large", 2 * ALL_MIB) / "cells")


@only_measured
def test_a_cell_that_does_not_fit_is_not_installed(
    wheels: Any, context: Any, tmp_path: Path, disk: Any
) -> None:
    cell = Cell(context, tmp_path, wheels.add("torch", "2.0"))
    cell.ctx.cache = disk("cache", 300)
    with pytest.raises(InfrastructureError, match="not enough disk space"):
        cell.build()


def incompressible(mebibytes: int) -> str:
    return os.urandom(mebibytes << 19).hex()


def test_a_disk_that_fills_up_while_a_cell_is_built_is_named_and_nothing_half_built_stays(
    wheels: Any, context: Any, tmp_path: Path, disk: Any
) -> None:
    files = {"verl/large.py": f"# {incompressible(8)}\n"}
    cell = Cell(context, tmp_path, wheels.add("small", "2.0"), wheels.add("verl", "0.9.1", files=files))
    cell.ctx.cache = disk("cells", 4)
    with pytest.raises(InfrastructureError) as caught:
        cell.build()
    assert "No space left on device" in str(caught.value)
    assert not [path for path in (cell.ctx.cache / "cells").iterdir() if path.is_dir()]
    # Space for the outcome, which is written next.
    (cell.ctx.cache / "outcome").write_bytes(b"x" * (3 << 20))
    cell.ctx.cache = disk("more", 64)
    _found, judgement = cell.build()
    assert judgement.status is Status.PASS


def test_a_disk_that_is_full_when_the_cell_is_looked_into_says_nothing_of_the_cell(
    wheels: Any, context: Any, tmp_path: Path, disk: Any
) -> None:
    cell = Cell(context, tmp_path, wheels.add("verl", "0.9.1"))
    found, _judgement = cell.build()
    work = disk("work", 1)
    cell.ctx.workdir = work
    # One page is free: enough for the input file but not for the output.
    (work / "filler").write_bytes(b"x" * ((1 << 20) - os.sysconf("SC_PAGE_SIZE")))
    with pytest.raises(InfrastructureError) as caught:
        cell.build()
    assert "No space left on device" in str(caught.value)
    # Complete environments stay.
    assert (Path(found.prefix).parent / environment_files.FINISHED).is_file()
