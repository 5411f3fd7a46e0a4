"""Everything that determines the environment of a cell, read from its facets and the outcomes it needs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.atomic_write import replace_bytes
from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.cell.commit_package import CommitPackage
from harness.builds.cell.host_requirements import available_commits, available_interpreter, require_host
from harness.builds.lock.cell_lock import LockedSource
from harness.builds.lock.extra_requirements import PinnedStack, UnresolvableError
from harness.builds.lock.omitted_packages import omitted_packages
from harness.cell_program.built_environment import CellDevice, read_cell_device
from harness.check import TaskContext
from harness.digest import digest_file, digest_json
from harness.matrix.model.environment_facets import PinnedSource, PinsFacet, PlatformFacet
from harness.measurements import read_shape
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT

# Part of an environment's digest: increase it when environments are laid out differently.
LAYOUT = 3
# Their builds compile kernels with CANN, so on the simulated device their wheels are installed instead.
BUILT_WITH_CANN = ("vllm-ascend",)


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """Everything that determines the content of an environment.

    lock: the file with the locked packages. packages: those that are installed. omitted: locked packages that
    this device does not need, and why. built: packages built here from their source package, because they
    have no wheel or one for another device. build_env: package -> environment variables of its build.
    added: those of `packages` that packages from source need in addition to the lock.
    patched, manifest: archive of the patched files, and for each its digest before (`pre`) and after (`post`)
    patching. commit_packages: packages installed from a commit of a mirror on this host. sources: packages
    that the build of an image compiles from repositories; the versions that such builds give them are not
    always the released ones.
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
    added: tuple[LockedPackage, ...] = ()
    sources: tuple[PinnedSource, ...] = ()

    @property
    def minor(self) -> str:
        """`3.11` of 3.11.7."""
        return ".".join(self.interpreter_version.split(".")[:2])

    @property
    def expected(self) -> dict[str, str]:
        """Name and version of every package that is to be installed."""
        locked = {package.name: package.version for package in self.packages}
        committed = {one.package: one.version for one in self.commit_packages}
        return locked | committed | {normal_name(one.package): one.version for one in self.sources}

    @property
    def patched_digests(self) -> dict[str, str]:
        """Path of each patched file -> its digest; "" for a file that the patches remove."""
        return {name: digests.get("post") or "" for name, digests in self.manifest.items()}

    @property
    def digest(self) -> str:
        """Digest of this content; it names the environment's folder."""
        packages = [one.identity for one in self.commit_packages]
        packages += [f"{one.package}@{one.repository}@{one.commit}" for one in self.sources]
        content = {
            "layout": LAYOUT,
            "lock": digest_file(self.lock),
            "patched": {name: expected.get("post") for name, expected in self.manifest.items()},
            "left_out": sorted(self.omitted),
            "built": sorted(self.built),
            **({"checkouts": packages} if packages else {}),
            **({"added": [one.requirement for one in self.added]} if self.added else {}),
            "build_env": {name: dict(values) for name, values in self.build_env.items()},
            "interpreter": [self.interpreter, self.interpreter_version, platform.machine()],
        }
        return digest_json(content)[:32]


def environment_spec(ctx: TaskContext) -> EnvironmentSpec:
    """The spec of the environment that a task's facets and inputs describe.

    BuildStepError if the build cannot begin, HostLacksError if that is because of this host. A container
    engine needs no interpreter, CANN or clone of this host: the image has them.
    """
    device = read_cell_device(ctx.facets["device"])
    platform_facet = read_shape(PlatformFacet, ctx.facets["platform"])
    pins = read_shape(PinsFacet, ctx.facets["pins"])
    commit_packages: tuple[CommitPackage, ...] = ()
    interpreter = ("", platform_facet.python)
    if not device.engine:
        require_host(device, platform_facet)
        commit_packages = available_commits(pins)
        interpreter = available_interpreter(platform_facet.python, ctx.log)
    lock = ctx.artifact("resolve", "lock.txt")
    patched, manifest = _patched_input(ctx)
    locked, kind = parse_lock(lock.read_text("utf-8")), "sim" if device.simulated else device.kind
    omitted = omitted_packages(locked, kind)
    installed = tuple(package for package in locked if package.name not in omitted)
    added = _requirements_of_sources(ctx, installed, pins, platform_facet)
    omitted = {name: why for name, why in omitted.items() if name not in {one.name for one in added}}
    omitted |= omitted_packages((*installed, *added), kind)
    packages = tuple(package for package in (*installed, *added) if package.name not in omitted)
    build_env = {normal_name(name): values for name, values in pins.build_env.items()}
    return EnvironmentSpec(
        lock=lock,
        packages=packages,
        omitted=omitted,
        built=_packages_to_build(ctx, packages, build_env, simulated=device.simulated),
        build_env=build_env,
        indexes=RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements).indexes,
        patched=patched,
        manifest=manifest,
        interpreter=interpreter[0],
        interpreter_version=interpreter[1],
        device=device,
        commit_packages=commit_packages,
        added=added,
        sources=pins.from_source if device.engine else (),
    )


def _requirements_of_sources(
    ctx: TaskContext, pinned: tuple[LockedPackage, ...], pins: PinsFacet, target: PlatformFacet
) -> tuple[LockedPackage, ...]:
    """What packages from source need in addition to these pins, in releases that fit them.

    Only packages whose commit a mirror has: their own files tell. Once resolved, these releases are kept.
    """
    resolved = RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements)
    sources = tuple(
        LockedSource(**vars(one), env=pins.build_env.get(one.package, {})) for one in pins.from_source
    )
    stack = PinnedStack(
        python=target.python,
        arch=target.arch,
        packages=pinned,
        from_source=sources,
        unpinned_sources=tuple(
            one.package for one in sources if one.package not in resolved.source_requirements
        ),
        indexes=resolved.indexes,
    )
    requirements = stack.requirements(mirror_folders())
    lines = [one.requirement for one in pinned]
    name = digest_json([lines, requirements, stack.python, stack.arch])
    stored = ctx.cache / "requirements" / f"{name}.txt"
    if requirements and not stored.is_file():
        try:
            added = stack.additions(requirements, os.environ)
        except UnresolvableError as error:
            reason = "No releases fit the pins and what the packages from source require."
            raise BuildStepError("resolve", reason, tail=str(error)) from error
        stored.parent.mkdir(parents=True, exist_ok=True)
        blocks = (f"{one.requirement}\n" + "".join(f"    # via {by}\n" for by in one.via) for one in added)
        replace_bytes(stored, "".join(blocks).encode(), mode=0o644)
    return parse_lock(stored.read_text("utf-8")) if requirements else ()


def _packages_to_build(
    ctx: TaskContext, packages: Sequence[LockedPackage], build_env: Collection[str], *, simulated: bool
) -> tuple[str, ...]:
    without_wheel = set(RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements).from_sdist)
    configured = {name for name in build_env if not (simulated and name in BUILT_WITH_CANN)}
    return tuple(package.name for package in packages if package.name in without_wheel | configured)


def _patched_input(ctx: TaskContext) -> tuple[Path | None, Mapping[str, Mapping[str, str | None]]]:
    outcome = ctx.inputs.get("patches")
    if outcome is None or outcome.artifact("patched.zip") is None or outcome.artifact("patched.json") is None:
        if any(ctx.facets[f"patches[{name}]"] for name in ("verl", "vllm_ascend", "others")):
            reason = "The patches selected for this cell did not apply, so there are no patched files."
            raise BuildStepError("patch", reason)
        return None, {}
    manifest = json.loads(ctx.artifact("patches", "patched.json").read_text("utf-8"))
    return ctx.artifact("patches", "patched.zip"), manifest
