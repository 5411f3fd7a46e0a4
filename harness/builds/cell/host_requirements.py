"""What a virtual environment needs of this host, and what to do if this host lacks it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

from harness.builds.cell.build_step_error import HostLacksError
from harness.builds.cell.cann_variables import selected_toolkit
from harness.builds.cell.commit_package import CommitPackage, find_commit_package
from harness.builds.cell.interpreter import fetch_interpreter, find_interpreter
from harness.cell_program.built_environment import CellDevice, HostLack
from harness.cell_program.cann_version import cann_folders
from harness.devices.cards.driver_files import ASCEND
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet
from harness.sources.git.mirrors import MIRRORS, find_source, mirror_folders, short_revision
from harness.user_folders import exists


def still_lacks(lacks: HostLack | None) -> bool:
    """Whether this host still lacks what a build needed; False for an outcome that did not store it."""
    match lacks:
        case HostLack(kind="python", names=(version, *_)):
            return find_interpreter(version, os.environ) is None
        case HostLack(kind="machine", names=(arch, *_)):
            return arch != platform.machine()
        case HostLack(kind="cann"):
            return not selected_toolkit(os.environ)
        case HostLack(kind="commits", names=commits):
            mirrors = mirror_folders()
            named = (name.rpartition(" ") for name in commits)
            return any(find_source(mirrors, commit, address) is None for address, _, commit in named)
        case HostLack(kind="engine"):
            return True
    return False


def available_interpreter(version: str, log: Callable[[str], None]) -> tuple[str, str]:
    """Path and full version of a Python of this host, fetched if there is none; else HostLacksError."""
    found = find_interpreter(version, os.environ)
    if found is not None:
        return found
    log(f"this host has no Python {version}: fetching it with uv")
    fetched = fetch_interpreter(version, os.environ)
    if isinstance(fetched, str):
        raise HostLacksError(
            HostLack(kind="python", names=(version,)),
            f"This host has no Python {version}, and uv cannot fetch it: {fetched}.",
            remedy=f"Install it (`uv python install {version}`), choose another Python for the cell, or use "
            "`--engine docker`, which needs no Python of this host.",
        )
    return fetched


def require_host(device: CellDevice, target: PlatformFacet) -> None:
    """HostLacksError if a virtual environment on this host cannot be one for the cell."""
    if not target.host and target.arch != platform.machine():
        raise HostLacksError(
            HostLack(kind="machine", names=(target.arch,)),
            f"The cell is for {target.arch}; this host is {platform.machine()}.",
            remedy=f"Run it on a host with {target.arch}.",
        )
    if device.kind == "npu" and not selected_toolkit(os.environ):
        scripts = map(_set_env, cann_folders(os.environ, ASCEND))
        found = next(filter(None, scripts), None)
        raise HostLacksError(
            HostLack(kind="cann"),
            f"The variables of CANN are not set, though {found.parent} has it."
            if found
            else "There is no CANN toolkit on this host.",
            remedy=f"Run `source {found}`, then run again."
            if found
            else "Install CANN and source its set_env.sh, or use `--engine docker` with an image of CANN.",
        )


def _set_env(folder: Path) -> Path | None:
    files = (folder / "set_env.sh", folder.parent / "set_env.sh")
    return next(filter(exists, files), None)


def available_commits(pins: PinsFacet) -> tuple[CommitPackage, ...]:
    """The packages from source, which have to be pure Python and whose commits a mirror has to have."""
    mirrors = mirror_folders()
    packages = {source: find_commit_package(source, mirrors) for source in pins.from_source}
    compiled = {one.package: one.build.more for one in packages.values() if one and one.build.more}
    if compiled:
        why = "; ".join(f"{name} ({more})" for name, more in compiled.items())
        raise HostLacksError(
            HostLack(kind="engine"),
            f"{why}: what has to be compiled from a repository is built in containers only.",
            remedy="Use `--engine docker` or `--engine podman`.",
        )
    missing = [source for source, package in packages.items() if package is None]
    if missing:
        names = ", ".join(f"{one.package} {short_revision(one.commit)}" for one in missing)
        absent = tuple(f"{one.repository} {one.commit}".strip() for one in missing)
        raise HostLacksError(
            HostLack(kind="commits", names=absent),
            f"No mirror has these commits: {names}.",
            remedy=f"Run `npu-matrix mirrors update`, or set {MIRRORS} to a folder of clones that have them.",
        )
    return tuple(one for one in packages.values() if one is not None)
