"""All that determines a cell's environment, gathered from its facets and the outcomes it builds upon."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.builds.cell.commit_package import PURE_PYTHON_FOLDERS, CommitPackage, find_commit_package
from harness.builds.cell.interpreter import find_interpreter
from harness.builds.lock.omitted_packages import omitted_packages
from harness.check import TaskContext
from harness.digest import digest_file, digest_json
from harness.sources.git.mirrors import MIRRORS, mirrors_folder
from harness.sources.packages.lockfile import LockedPackage, normal_name, parse_lock
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT

# Part of an environment's name: raise it when environments are laid out differently.
LAYOUT = 2
# Their builds compile kernels with CANN: on the simulated device their wheels are taken.
BUILT_WITH_CANN = ("vllm-ascend",)
CANN_FOLDERS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/latest")


class BuildStepError(Exception):
    """A step of the build failed in a way that says something of the cell."""

    def __init__(self, step: str, reason: str, *, tail: str = "", unsupported: bool = False) -> None:
        super().__init__(reason)
        self.step, self.reason, self.tail, self.unsupported = step, reason, tail, unsupported


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """All that determines an environment's content.

    packages: what it holds. left_out: what it does without although it is locked, and why.
    built: packages built here from their source package: they have no wheel, or one for another device.
    checkouts: packages taken from a commit of a mirror on this machine.
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
    device: Mapping[str, Any]
    checkouts: tuple[CommitPackage, ...] = ()

    @property
    def minor(self) -> str:
        """`3.11` of 3.11.7."""
        return ".".join(self.interpreter_version.split(".")[:2])

    @property
    def digest(self) -> str:
        """Names the environment's folder."""
        content = {
            "layout": LAYOUT,
            "lock": digest_file(self.lock),
            "patched": {name: expected.get("post") for name, expected in self.manifest.items()},
            "left_out": sorted(self.omitted),
            "built": sorted(self.built),
            **({"checkouts": [one.identity for one in self.checkouts]} if self.checkouts else {}),
            "build_env": {name: dict(values) for name, values in self.build_env.items()},
            "interpreter": [self.interpreter, self.interpreter_version, platform.machine()],
        }
        return digest_json(content)[:32]


def environment_spec(ctx: TaskContext) -> EnvironmentSpec:
    """Read facets and inputs; BuildStepError when this machine cannot build such an environment."""
    device, target = ctx.facets["device"], ctx.facets["platform"]
    _require_supported(device, target)
    checkouts = _checkouts(ctx, device)
    found = find_interpreter(target["python"], os.environ)
    if found is None:
        raise BuildStepError(
            "interpreter", f"This machine has no Python {target['python']}.", unsupported=True
        )
    lock = ctx.artifact("resolve", "lock.txt")
    patched, manifest = _patched_input(ctx)
    locked = parse_lock(lock.read_text("utf-8"))
    unneeded = omitted_packages(locked, device["kind"])
    packages = tuple(package for package in locked if package.name not in unneeded)
    build_env = {
        normal_name(name): values for name, values in ctx.facets["pins"].get("build_env", {}).items()
    }
    return EnvironmentSpec(
        lock=lock,
        packages=packages,
        omitted=unneeded,
        built=_built(ctx, packages, build_env, device["kind"]),
        build_env=build_env,
        indexes=tuple(ctx.facets["pins"].get("index", ())),
        patched=patched,
        manifest=manifest,
        interpreter=found[0],
        interpreter_version=found[1],
        device=device,
        checkouts=checkouts,
    )


def _built(
    ctx: TaskContext, packages: Sequence[LockedPackage], build_env: Mapping[str, Any], kind: str
) -> tuple[str, ...]:
    without_wheel = set(RESOLVE_FORMAT.read(ctx.inputs["resolve"].measurements).from_sdist)
    told = {name for name in build_env if not (kind == "sim" and name in BUILT_WITH_CANN)}
    return tuple(package.name for package in packages if package.name in without_wheel | told)


def _require_supported(device: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    if not target.get("host") and target.get("arch") != platform.machine():
        raise BuildStepError(
            "engine",
            f"The cell is for {target.get('arch')}, this machine is {platform.machine()}.",
            unsupported=True,
        )
    if device["kind"] == "npu" and not _cann_folder():
        raise BuildStepError(
            "engine",
            "There is no CANN toolkit on this machine, so the container engine is needed.",
            unsupported=True,
        )


def _checkouts(ctx: TaskContext, device: Mapping[str, Any]) -> tuple[CommitPackage, ...]:
    """Packages from commits: those that are Python alone, where a mirror has the commit."""
    source = ctx.facets["pins"].get("from_source", ())
    mirrors = mirrors_folder()
    found = {
        item["package"]: find_commit_package(item, mirrors)
        for item in source
        if device["kind"] != "npu" and mirrors and item["package"] in PURE_PYTHON_FOLDERS
    }
    lacking = [item["package"] for item in source if found.get(item["package"]) is None]
    if lacking:
        names = ", ".join(lacking)
        mirror = (
            f", or a mirror with the commit ({MIRRORS})" if set(lacking) <= set(PURE_PYTHON_FOLDERS) else ""
        )
        raise BuildStepError(
            "engine",
            f"{names}: built from a repository's commit, which needs the container engine{mirror}.",
            unsupported=True,
        )
    return tuple(one for one in found.values() if one is not None)


def _cann_folder() -> Path | None:
    named = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    folders = [named] if named else list(CANN_FOLDERS)
    return next((Path(folder) for folder in folders if Path(folder).is_dir()), None)


def _patched_input(ctx: TaskContext) -> tuple[Path | None, Mapping[str, Mapping[str, str | None]]]:
    outcome = ctx.inputs.get("patches")
    if outcome is None or outcome.artifact("patched.zip") is None or outcome.artifact("patched.json") is None:
        if ctx.facets["patches[verl]"] or ctx.facets["patches[vllm_ascend]"]:
            raise BuildStepError(
                "patch", "The patches selected for this cell did not apply, so there is no patched tree."
            )
        return None, {}
    manifest = json.loads(ctx.artifact("patches", "patched.json").read_text("utf-8"))
    return ctx.artifact("patches", "patched.zip"), manifest
