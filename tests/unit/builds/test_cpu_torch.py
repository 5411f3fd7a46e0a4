"""torch for CUDA in the lock of a cell on NPUs is replaced by its build for the CPU."""

from __future__ import annotations

import os
from typing import Any

from harness.builds.export.export_formats import EXPORTS
from harness.builds.lock import cpu_torch
from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.lock.lock_notices import lock_notices
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet

LOCK = """\
cuda-bindings==12.9.4 \\
    --hash=sha256:cc
    # via nvidia-cublas-cu12
nvidia-cublas-cu12==12.8 \\
    --hash=sha256:aa
    # via torch
torch==2.9.0 \\
    --hash=sha256:bb
    # via -r requirements.in
triton==3.5.0 \\
    --hash=sha256:dd
    # via torch
"""


def lock(device: str = "npu") -> CellLock:
    facets = LockFacets(pins=PinsFacet(), platform=PlatformFacet(python="3.11.7", arch="x86_64"))
    return make_lock(facets, LOCK, cell="c", title="c", axes={"cann": "8.5.0", "soc": "a2", "device": device})


def test_the_build_for_the_cpu_is_pinned_and_cuda_left_out(wheels: Any) -> None:
    wheels.add("torch", "2.9.0+cpu", "jinja2")
    wheels.add("torch", "2.9.0", "nvidia-cublas-cu12")
    wheels.add("jinja2", "3.1.6")
    made = cpu_torch.with_cpu_torch(lock(), os.environ)
    [package] = made.packages
    assert (package.name, package.version) == ("torch", "2.9.0+cpu")
    assert all(digest.startswith("sha256:") and len(digest) == 71 for digest in package.hashes)
    assert set(made.omitted) == {"cuda-bindings", "nvidia-cublas-cu12", "triton"}
    assert "--extra-index-url https://download.pytorch.org/whl/cpu\ntorch==2.9.0+cpu \\\n" in EXPORTS[
        "requirements"
    ](made)
    assert not any("build for CUDA" in notice for notice in lock_notices(made))


def test_without_such_a_build_everything_that_torch_loads_stays_and_is_reported(wheels: Any) -> None:
    wheels.add("torch", "2.9.0", "nvidia-cublas-cu12")
    made = cpu_torch.with_cpu_torch(lock(), os.environ)
    assert made == lock()
    assert {package.name for package in made.packages} == {"torch", "nvidia-cublas-cu12", "cuda-bindings"}
    assert any("torch is a build for CUDA" in notice for notice in lock_notices(made))


def test_other_cells_keep_their_torch(wheels: Any) -> None:
    wheels.add("torch", "2.9.0+cpu")
    for device in ("sim", "cpu"):
        assert cpu_torch.with_cpu_torch(lock(device), os.environ) == lock(device)


def test_a_resolved_build_for_the_cpu_names_its_index() -> None:
    facets = LockFacets(pins=PinsFacet(), platform=PlatformFacet(python="3.11.7", arch="x86_64"))
    made = make_lock(facets, "torch==2.9.0+cpu \\\n    --hash=sha256:bb\n", cell="c", title="c", axes={})
    assert "--extra-index-url https://download.pytorch.org/whl/cpu\n" in EXPORTS["requirements"](made)
