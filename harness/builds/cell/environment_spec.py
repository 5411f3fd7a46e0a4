"""Everything that determines the environment of a cell, read from its facets and the outcomes it needs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.builds.cell.commit_package import PURE_PYTHON_FOLDERS, CommitPackage, find_commit_package
from harness.builds.cell.interpreter import fetch_interpreter, find_interpreter
from harness.builds.lock.omitted_packages import omitted_packages
from harness.cell_program.built_environment import CellDevice, read_cell_device
from harness.check import TaskContext
from harness.digest import digest_file, digest_json
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet
from harness.measurements import read_shape
from harness.sources.git.mirrors import MIRRORS, mirror_folders
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT

# Part of an environment's digest: increase it when environments are laid out differently.
LAYOUT = 3
# Their builds compile kernels with CANN, so on the simulated device their wheels are installed instead.
BUILT_WITH_CANN = ("vllm-ascend",)
CANN_FOLDERS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/latest")


class BuildStepError(Exception):
    """A step of the build failed in a way that says something about the cell, not about this host."""

    def __init__(self, step: str, reason: str, *, tail: str = "", unsupported: bool = False) -> None:
        super().__init__(reason)
        self.step, self.reason, self.tail, self.unsupported = step, reason, tail, unsupported


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """Everything that determines the content of an environment.

    lock: the file with the locked packages. packages: those that are installed. omitted: locked packages that
    this device does not need, and why. built: packages built here from their source package, because they
    have no wheel or one for another device. build_env: package -> environment variables of its build.
    patched, manifest: archive of the patched files, and for each its digest before (`pre`) and after (`post`)
    patching. commit_packages: packages installed from a commit of a mirror on this host.
    """

    lock: Path
    packages: tuple[LockedPackage, ...]
    omitted: Mapping[str, str]
    built: tuple[str, ...]
    build_env: Mapping[str, Mapping[str, str]]
    indexes: tuple[str, ...]
    patched: Path | None
    manifest: Mapping[str, Mapping[str, str | None]]
    interpreter: str
    interpreter_version: str
    device: CellDevice
    commit_packages: tuple[CommitPackage, ...] = ()

    @property
    def minor(self) -> str:
        """`3.11` of 3.11.7."""
        return ".".join(self.interpreter_version.split(".")[:2])

    @property
    def expected(self) -> dict[str, str]:
        """Name and version of every package that is to be installed."""
        locked = {package.name: package.version for package in self.packages}
        return locked | {one.package: one.version for one in self.commit_packages}

    @property
    def patched_digests(self) -> dict[str, str]:
        """Path of each patched file -> its digest; "" for a file that the patches remove."""
        return {name: digests.get("post") or "" for name, digests in self.manifest.items()}

    @property
    def digest(self) -> str:
        """Digest of this content; it names the environment's folder."""
        packages = [one.identity for one in self.commit_packages]
        content = {
            "layout": LAYOUT,
            "lock": digest_file(self.lock),
            "patched": {name: expected.get("post") for name, expected in self.manifest.items()},
            "left_out": sorted(self.omitted),
            "built": sorted(self.built),
            **({"checkouts": packages} if packages else {}),
            "build_env": {name: dict(values) for name, values in self.build_env.items()},
            "interpreter": [self.interpreter, self.interpreter_version, platform.machine()],
        }
        return digest_json(content)[:32]


def environment_spec(ctx: TaskContext) -> EnvironmentSpec:
    """The spec of the environment that a task's facets and inputs describe.

    BuildStepError when this host cannot build it.
    """
    device = read_cell_device(ctx.facets["device"])
    platform_facet = read_shape(PlatformFacet, ctx.facets["platform"])
    pins = read_shape(PinsFacet, ctx.facets["pins"])
    _require_supported(device, platform_facet)
    commit_packages = _commit_packages(pins, device)
    interpreter = find_interpreter(platform_facet.python, os.environ)
    if interpreter is None:
        ctx.log(f"this host has no Python {platform_facet.python}: fetching it with uv")
        fetched = fetch_interpreter(platform_facet.python, os.environ)
        if isinstance(fetched, str):
            reason = f"This host has no Python {platform_facet.python}, and uv cannot fetch it: {fetched}."
            raise BuildStepError("interpreter", reason, unsupported=True)
        interpreter = fetched
    lock = ctx.artifact("resolve", "lock.txt")
    patched, manifest = _patched_input(ctx)
    locked = parse_lock(lock.read_text("utf-8"))
    omitted = omitted_packages(locked, device.kind)
    packages = tuple(package for package in locked if package.name not in omitted)
    build_env = {normal_name(name): values for name, values in pins.build_env.items()}
    return EnvironmentSpec(
        lock=lock,
        packages=packages,
        omitted=omitted,
        built=_packages_to_build(ctx, packages, build_env, device.kind),
        build_env=build_env,
        indexes=RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements).indexes,
        patched=patched,
        manifest=manifest,
        interpreter=interpreter[0],
        interpreter_version=interpreter[1],
        device=device,
        commit_packages=commit_packages,
    )


def _packages_to_build(
    ctx: TaskContext, packages: Sequence[LockedPackage], build_env: Collection[str], kind: str
) -> tuple[str, ...]:
    without_wheel = set(RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements).from_sdist)
    configured = {name for name in build_env if not (kind == "sim" and name in BUILT_WITH_CANN)}
    return tuple(package.name for package in packages if package.name in without_wheel | configured)


def _require_supported(device: CellDevice, target: PlatformFacet) -> None:
    if not target.host and target.arch != platform.machine():
        raise BuildStepError(
            "engine",
            f"The cell needs the architecture {target.arch}; this host is {platform.machine()}.",
            unsupported=True,
        )
    if device.kind == "npu" and not _cann_folder():
        raise BuildStepError(
            "engine",
            "There is no CANN toolkit on this host, so the cell needs a container engine.",
            unsupported=True,
        )


def _commit_packages(pins: PinsFacet, device: CellDevice) -> tuple[CommitPackage, ...]:
    """The packages from source; BuildStepError unless all are pure Python and a mirror has their commits."""
    mirrors = mirror_folders()
    packages = {
        source.package: find_commit_package(source, mirrors)
        for source in pins.from_source
        if device.kind != "npu" and source.package in PURE_PYTHON_FOLDERS
    }
    missing = [source.package for source in pins.from_source if packages.get(source.package) is None]
    if missing:
        names = ", ".join(missing)
        is_pure = set(missing) <= set(PURE_PYTHON_FOLDERS)
        mirror = f", or a mirror that has the commit ({MIRRORS})" if is_pure else ""
        raise BuildStepError(
            "engine",
            f"{names}: building from a repository's commit needs a container engine{mirror}.",
            unsupported=True,
        )
    return tuple(one for one in packages.values() if one is not None)


def _cann_folder() -> Path | None:
    named = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    folders = [named] if named else list(CANN_FOLDERS)
    return next((Path(folder) for folder in folders if Path(folder).is_dir()), None)


def _patched_input(ctx: TaskContext) -> tuple[Path | None, Mapping[str, Mapping[str, str | None]]]:
    outcome = ctx.inputs.get("patches")
    if outcome is None or outcome.artifact("patched.zip") is None or outcome.artifact("patched.json") is None:
        if any(ctx.facets[f"patches[{name}]"] for name in ("verl", "vllm_ascend", "others")):
            reason = "The patches selected for this cell did not apply, so there are no patched files."
            raise BuildStepError("patch", reason)
        return None, {}
    manifest = json.loads(ctx.artifact("patches", "patched.json").read_text("utf-8"))
    return ctx.artifact("patches", "patched.zip"), manifest
