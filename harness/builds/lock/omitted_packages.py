"""Locked packages that are not installed on the simulated device, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.sources.packages.lockfile import LockedPackage

# nvidia-ml-py stays: it is a small Python module that reports that there is no driver.
_ROOTS = (
    (
        re.compile(r"nvidia-(?!ml-py$).*|cupy-cuda\d+x"),
        "a CUDA library: torch loads with stub libraries, and nothing calls it on the simulated device",
    ),
    (
        re.compile(
            r"flashinfer-(python|cubin)|xformers|quack-kernels|humming-kernels|tilelang|tokenspeed-mla|cuda-tile"
        ),
        "required only by the CUDA wheel of vLLM (requirements/cuda.txt)",
    ),
    (
        re.compile("triton-ascend"),
        "its compiler is part of CANN, which is simulated; it installs the same module as triton",
    ),
)


def omitted_packages(packages: Sequence[LockedPackage], kind: str) -> dict[str, str]:
    """Name of a locked package -> why it is not installed. Empty for other devices than `sim`.

    Packages that only omitted packages require are omitted too.
    """
    if kind != "sim":
        return {}
    omitted = {
        package.name: reason
        for package in packages
        for pattern, reason in _ROOTS
        if pattern.fullmatch(package.name)
    }
    remaining = [package for package in packages if package.name not in omitted]
    while orphans := _orphans(remaining, omitted):
        omitted |= orphans
        remaining = [package for package in remaining if package.name not in omitted]
    return dict(sorted(omitted.items()))


def _orphans(packages: Sequence[LockedPackage], gone: Mapping[str, str]) -> dict[str, str]:
    """Packages that only omitted packages require, without requirements of the cell itself."""
    orphans = {}
    for package in packages:
        wanting = [name for name in package.via if not name.startswith("--override")]
        if wanting and all(name in gone for name in wanting):
            orphans[package.name] = "required only by packages that are not installed"
    return orphans
