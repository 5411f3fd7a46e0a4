"""What a lock does not pin or an export does not install, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.builds.lock.cell_lock import CPU_INDEX, TOOLS_OF, WHEELS_BY, CellLock, without_tag


def lock_notices(lock: CellLock) -> tuple[str, ...]:
    """Sentences about what this lock does not pin, and how to pin it."""
    return (*_of_base(lock), *_of_packages(lock), *_of_sources(lock), *_of_requirements(lock))


def _of_base(lock: CellLock) -> Iterator[str]:
    if lock.image_notice:
        yield lock.image_notice
    if not lock.image_digest:
        yield (
            f"The base image {lock.image} is given by a tag, which can be moved to another image. "
            f"Get its digest with `docker buildx imagetools inspect {lock.image}`, then run "
            f"`npu-matrix --base-image {without_tag(lock.image)}@sha256:DIGEST lock {lock.cell}`."
        )


def _of_packages(lock: CellLock) -> Iterator[str]:
    for name, repository in lock.not_installed.items():
        yield (
            f"{name} of {repository} belongs to this stack but is not installed by this export, because "
            "it changes other packages in place. Of its changes, only the listed patches are applied."
        )
    if lock.has_cuda_torch:
        yield (
            "torch is a build for CUDA, which does not load without gigabytes of CUDA libraries. NPUs use "
            f"none of them. Make the lock where {CPU_INDEX}, or a mirror of it in pip's settings, can be "
            "reached: it then has the builds for the CPU."
        )
    for name, wheel in lock.variants.items():
        if name in lock.compiled:
            digest = f" (sha256 {wheel.sha256})" if wheel.sha256 else ""
            yield (
                f"{name} is compiled for {lock.axes.get('soc', 'this chip')}. Its wheel variant "
                f"{wheel.label} is built for it, but pip and uv choose no variants. To install it, download "
                f"{wheel.address}{digest} and save it as {wheel.plain_name}."
            )
    for name, wheel in lock.fetched.items():
        yield (
            f"{name} is not compiled: its wheel variant {wheel.label} for "
            f"{lock.axes.get('soc', 'this chip')} is downloaded from {wheel.address}. A requirements file "
            f"cannot choose it: with one, pip compiles {name}."
        )
    for name, paths in lock.incomplete.items():
        yield (
            f"The source package of {name} lacks the submodules {', '.join(paths)}, and matrix.yaml names no "
            "repository with a tag for it: its build will fail. Add `repository` and `tag` to its axis."
        )


def _of_sources(lock: CellLock) -> Iterator[str]:
    without_tree = [f"{one.package} {one.commit}" for one in lock.from_source if not one.tree]
    if without_tree:
        yield (
            "The git tree of these commits or tags is not known, so their content is not verified: "
            f"{', '.join(without_tree)}. Set NPU_MATRIX_MIRRORS to a folder of clones that have them, or "
            f"run `npu-matrix lock {lock.cell} --ask-upstream`, which fetches commits without files."
        )
    built = [
        *lock.compiled,
        *lock.without_wheel,
        *(one.package for one in lock.from_source if one.package not in WHEELS_BY),
    ]
    isolated = [name for name in dict.fromkeys(built) if lock.isolated(name)]
    if isolated:
        yield (
            "These packages are built from source with build tools that are not pinned: "
            f"{', '.join(isolated)}. pip fetches the newest ones for each build (build isolation)."
        )
    for one in lock.from_source:
        if one.package in WHEELS_BY:
            yield (
                f"{one.package} is compiled by a script of its repository, which needs "
                f"{', '.join(TOOLS_OF[one.package])} and fetches submodules and an archive."
            )


def _of_requirements(lock: CellLock) -> Iterator[str]:
    if lock.unpinned_sources:
        yield (
            "The requirements of these packages from source are neither pinned nor installed: "
            f"{', '.join(lock.unpinned_sources)}. Their authors install them over the pins, "
            "which no resolver accepts; `python3 -m pip check` reports what is missing. "
            "`npu-matrix lock` pins them if NPU_MATRIX_MIRRORS is a folder of clones with their commits, "
            "and if these commits state their requirements in a plain list or file."
        )
    for name, requirements in lock.overruled.items():
        if requirements:
            yield (
                f"{name} requires other versions than the pins: {', '.join(requirements)}. The pins are "
                "kept; `python3 -m pip check` reports the conflicts."
            )
