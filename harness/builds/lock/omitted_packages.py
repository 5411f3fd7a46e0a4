"""What an environment on the simulated device does without although its lock has it, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.sources.packages.lockfile import LockedPackage

# nvidia-ml-py is a small Python module that asks whether there is a driver, and says no.
_ROOTS = (
    (
        re.compile(r"nvidia-(?!ml-py$).*|cupy-cuda\d+x"),
        "a library of CUDA: torch loads on stand-ins, and nothing calls it on the simulated device",
    ),
    (
        re.compile(
            r"flashinfer-(python|cubin)|xformers|quack-kernels|humming-kernels|tilelang|tokenspeed-mla|cuda-tile"
        ),
        "wanted by the CUDA wheel of vLLM alone (requirements/cuda.txt); it is built for no device here",
    ),
    (
        re.compile("triton-ascend"),
        "its compiler is part of CANN, which is simulated; it owns the same module as triton",
    ),
)


def omitted_packages(packages: Sequence[LockedPackage], kind: str) -> dict[str, str]:
    """Name of a locked package -> why the environment does without it. Only the simulated device does.

    With them goes what nothing else of the lock wants.
    """
    if kind != "sim":
        return {}
    found = {
        package.name: reason
        for package in packages
        for pattern, reason in _ROOTS
        if pattern.fullmatch(package.name)
    }
    remaining = [package for package in packages if package.name not in found]
    while orphans := _orphans(remaining, found):
        found |= orphans
        remaining = [package for package in remaining if package.name not in found]
    return dict(sorted(found.items()))


def _orphans(packages: Sequence[LockedPackage], gone: Mapping[str, str]) -> dict[str, str]:
    """Packages that only packages left out want; a requirement of the cell itself stays."""
    orphans = {}
    for package in packages:
        wanting = [name for name in package.via if not name.startswith("--override")]
        if wanting and all(name in gone for name in wanting):
            orphans[package.name] = "wanted by packages that are left out, and by no other"
    return orphans
