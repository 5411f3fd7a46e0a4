"""Locked packages that are not installed on the cell's device, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.sources.packages.lockfile import LockedPackage

_OF_CUDA_VLLM = re.compile(
    r"flashinfer-(python|cubin|jit-cache)|xformers|quack-kernels|humming-kernels|tilelang|tokenspeed-mla|cuda-tile"
)
_ONLY_CUDA_VLLM = "required only by the CUDA wheel of vLLM (requirements/cuda.txt)"
# nvidia-ml-py stays: it is a small Python module that reports that there is no driver.
_ROOTS = {
    "sim": (
        (
            re.compile(r"nvidia-(?!ml-py$).*|cupy-cuda\d+x"),
            "a CUDA library: torch loads with stub libraries, and nothing calls it on the simulated device",
        ),
        (_OF_CUDA_VLLM, _ONLY_CUDA_VLLM),
        (
            re.compile("triton-ascend"),
            "its compiler is part of CANN, which is simulated; it installs the same module as triton",
        ),
    ),
    "npu": (
        (
            re.compile(r"nvidia-(?!ml-py$).*|cupy-cuda\d+x|cuda-(toolkit|bindings|pathfinder|python|core)"),
            "a library for NVIDIA GPUs, which nothing loads on an NPU",
        ),
        (_OF_CUDA_VLLM, _ONLY_CUDA_VLLM),
        (
            re.compile("triton|pytorch-triton"),
            "compiles for NVIDIA and AMD GPUs and hides triton-ascend; vllm-ascend's Dockerfiles remove it",
        ),
    ),
}
# A torch for CUDA does not load without the CUDA libraries.
_CUDA_TORCH = re.compile(r"nvidia-.*|cuda-(toolkit|bindings|pathfinder|python|core)")


def has_cuda_torch(packages: Sequence[LockedPackage]) -> bool:
    """Whether the torch in this lock is a build for CUDA, as that of PyPI for x86_64 is."""
    return any(_CUDA_TORCH.fullmatch(package.name) and "torch" in package.via for package in packages)


def omitted_packages(
    packages: Sequence[LockedPackage], kind: str, *, cuda_torch: bool = True
) -> dict[str, str]:
    """Name of a locked package -> why it is not installed on a device of this kind (`sim`, `npu`, `cpu`).

    Packages that only omitted packages require are omitted too. cuda_torch: keep what torch requires on an
    NPU host, because a build for CUDA does not load without it.
    """
    kept = _required_by_torch(packages) if cuda_torch and kind == "npu" else set()
    omitted = {
        package.name: reason
        for package in packages
        for pattern, reason in _ROOTS.get(kind, ())
        if pattern.fullmatch(package.name) and package.name not in kept
    }
    remaining = [package for package in packages if package.name not in omitted]
    while orphans := _orphans(remaining, omitted):
        omitted |= orphans
        remaining = [package for package in remaining if package.name not in omitted]
    return dict(sorted(omitted.items()))


def _required_by_torch(packages: Sequence[LockedPackage]) -> set[str]:
    """The CUDA libraries that torch requires, directly or not."""
    reached = {"torch"}
    while new := {
        package.name
        for package in packages
        if package.name not in reached and _CUDA_TORCH.fullmatch(package.name) and reached & {*package.via}
    }:
        reached |= new
    return reached


def _orphans(packages: Sequence[LockedPackage], gone: Mapping[str, str]) -> dict[str, str]:
    """Packages that only omitted packages require, without requirements of the cell itself."""
    orphans = {}
    for package in packages:
        wanting = [name for name in package.via if not name.startswith("--override")]
        if wanting and all(name in gone for name in wanting):
            orphans[package.name] = "required only by packages that are not installed"
    return orphans
