"""torch for cells on NPUs: its build for the CPU, where the one on the package index is for CUDA.

torch_npu adds the device to any build of torch. PyPI's torch for x86_64 is built for CUDA and does not load
without gigabytes of CUDA libraries; the installation guide of vllm-ascend and verl's Dockerfiles install the
build for the CPU there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.builds.lock.cell_lock import CPU_BUILDS, CPU_INDEX, CellLock, index_of_cpu_builds
from harness.builds.lock.extra_requirements import PinnedStack, resolve_with_pins
from harness.builds.lock.omitted_packages import omitted_packages
from harness.errors import InfrastructureError
from harness.sources.packages.index_settings import index_environment


def with_cpu_torch(lock: CellLock, environ: Mapping[str, str]) -> CellLock:
    """The lock with the same versions of torch, torchvision and torchaudio, built for the CPU.

    The lock stays as it is if its torch needs no CUDA libraries, or if the builds cannot be found now;
    `lock_notices` reports the latter.
    """
    if not lock.has_cuda_torch:
        return lock
    wanted = [f"{one.name}=={one.version}+cpu" for one in lock.packages if one.name in CPU_BUILDS]
    settings = index_environment(environ).with_indexes((CPU_INDEX,))
    try:
        resolved = resolve_with_pins(PinnedStack.of(lock), wanted, settings, free=CPU_BUILDS)
    except InfrastructureError:
        return lock
    builds = {package.name: package for package in resolved if package.name in CPU_BUILDS}
    packages = tuple(
        replace(builds[one.name], via=one.via) if one.name in builds else one for one in lock.packages
    )
    omitted = omitted_packages(packages, "npu", cuda_torch=False)
    return replace(
        lock,
        packages=tuple(package for package in packages if package.name not in omitted),
        omitted=dict(sorted({**lock.omitted, **omitted}.items())),
        package_index={**lock.package_index, **index_of_cpu_builds(packages)},
    )
