"""The check `environment` with the engine `venv`: one virtual environment for each content.

The scripts of a virtual environment contain its path, so it cannot be built elsewhere and then moved. It is
built in its final folder and is complete once `finished.json` is there. A folder without that file is left
from a build that was killed, and is removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import filelock

from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.cell.cann_variables import selected_toolkit
from harness.builds.cell.cell_probe import probe_cell
from harness.builds.cell.disk_space import require_disk_space
from harness.builds.cell.environment_build import EnvironmentBuild, environment_evidence, make_runtime
from harness.builds.cell.environment_files import (
    FINISHED,
    IDENTITY,
    compiled_since,
    earlier_manifest,
    require_unchanged,
    runtime_folders,
    store_manifest,
    verify_installed,
    why_changed,
    with_folders,
    with_libraries,
    write_identity,
)
from harness.builds.cell.environment_spec import EnvironmentSpec
from harness.builds.cell.patched_files import MismatchError, install_patched
from harness.builds.cell.wheel_store import WheelStore
from harness.builds.installed.file_manifest import WatchedFolder, read_states
from harness.cell_program.built_environment import (
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentNotBuilt,
    read_cell_device,
)
from harness.check import Completed, TaskContext
from harness.devices.sim.runtime_build.stand_in_cann import install_runtime
from harness.devices.sim.start.sim_environment import DEFAULT_CANN
from harness.errors import InfrastructureError, Location
from harness.outcome import Measured
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_refusal import refusal_behind
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage
from harness.sources.packages.uv_errors import parse_uv_failure
from harness.sources.packages.uv_settings import write_uv_settings
from harness.sources.redact import redact_text

# uv creates it in every environment into which it installs.
UV_LOCK = ".lock"
QUIET = ("--quiet", "--color", "never")
SECONDS_TO_INSTALL = 1500.0
SECONDS_TO_WAIT = 1800.0


def run(ctx: TaskContext) -> Measured[EnvironmentBuilt | EnvironmentNotBuilt]:
    """Build the virtual environment that the facets describe, and probe it.

    A build that fails is a measurement. InfrastructureError when the network or this host failed.
    """
    build = EnvironmentBuild(device=read_cell_device(ctx.facets["device"]))
    try:
        measured = build.measure(ctx, lambda spec: _build(ctx, spec, build))
    except OSError as error:
        raise machine_failure(str(error)) or InfrastructureError(
            "the environment could not be stored",
            where=Location(str(error.filename or ctx.cache)),
            why=str(error),
        ) from error
    artifacts = {IDENTITY: IDENTITY} if measured.built else {}
    return Measured(measurements=measured, evidence=environment_evidence(measured), artifacts=artifacts)


def holds(measurements: EnvironmentBuilt, *, full: bool = False) -> str:
    """Why a virtual environment can no longer be used, or "".

    full: read every file, as always for a real device. Otherwise only files whose metadata changed are read.
    """
    home = Path(measurements.prefix).parent
    if not (home / FINISHED).is_file():
        return f"the environment in {home} is gone"
    if measurements.files is None:
        return f"the environment in {home} was built without a list of its files"
    return why_changed(measurements.files, full=full or measurements.requested_device.kind == "npu")


def _build(ctx: TaskContext, spec: EnvironmentSpec, build: EnvironmentBuild) -> EnvironmentBuilt:
    home = ctx.cache / "cells" / spec.digest
    home.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home.with_suffix(".lock"), timeout=SECONDS_TO_WAIT)
    try:
        with lock:
            try:
                return _build_locked(ctx, spec, home, build)
            except (BuildStepError, InfrastructureError, OSError):
                # If the disk is full, outcomes need the space.
                if not (home / FINISHED).is_file():
                    shutil.rmtree(home, ignore_errors=True)
                raise
    except filelock.Timeout as error:
        raise InfrastructureError(
            "another process has been building this environment for too long",
            where=Location(home.with_suffix(".lock")),
            fix="wait for that process, or stop it",
        ) from error


def _build_locked(
    ctx: TaskContext, spec: EnvironmentSpec, home: Path, build: EnvironmentBuild
) -> EnvironmentBuilt:
    prefix = home / "venv"
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    with build.step("verify"):
        manifest = earlier_manifest(home)
    reused = manifest is not None
    if manifest is None:
        _set_aside(ctx, home)
        home.mkdir(parents=True)
        own = _install(ctx, spec, prefix, build)
        with build.step("patch"):
            _patch(spec, site_packages)
        with build.step("verify"):
            manifest = verify_installed(ctx, spec, prefix, site_packages, own)
    if spec.device.simulated:
        with build.step("runtime"):
            build.runtime = build.runtime or str(make_runtime(spec.device, site_packages, home))
            runtime = runtime_folders(build.runtime, spec.device.cann or DEFAULT_CANN)
            manifest = with_folders(manifest, runtime)
    if spec.device.rehearsed:
        install_runtime(Path(build.runtime), os.environ)
    location = EnvironmentLocation(
        requested_device=spec.device,
        python=str(prefix / "bin" / "python"),
        prefix=str(prefix),
        runtime=build.runtime,
    )
    with build.step("probe"):
        probe = probe_cell(ctx, spec, location, site_packages, compiles=not reused)
    if reused:
        require_unchanged(manifest)
    else:
        manifest = compiled_since(manifest)
    manifest, libraries = with_libraries(manifest, probe.libraries, spec.device, home, ctx.cache)
    toolkit = selected_toolkit(os.environ) if spec.device.kind == "npu" else {}
    write_identity(manifest, home, ctx.workdir, toolkit)
    return build.finished(
        spec,
        replace(location, files=store_manifest(manifest, home)),
        probe,
        site_packages=site_packages,
        digest=spec.digest,
        reused=reused,
        libraries=libraries,
        toolkit=toolkit,
    )


def _set_aside(ctx: TaskContext, home: Path) -> None:
    """Remove what is left of an earlier build, but keep a finished environment for inspection."""
    if (home / FINISHED).is_file():
        aside = home.with_suffix(".changed")
        ctx.log(f"the environment has changed since it was built; building it again (see {aside})")
        shutil.rmtree(aside, ignore_errors=True)
        home.rename(aside)
        # `cleanup` removes environments without this file.
        (aside / FINISHED).unlink()
    shutil.rmtree(home, ignore_errors=True)


def _install(
    ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, build: EnvironmentBuild
) -> frozenset[str]:
    """Create the virtual environment and install the packages; returns the files of the empty environment."""
    settings = index_environment(os.environ).with_indexes(spec.indexes)
    write_uv_settings(ctx.workdir, "")
    require_disk_space(spec.packages, prefix.parent.parent)
    with build.step("venv"):
        argv = [uv_binary(), "venv", "--python", spec.interpreter, "--no-project", *QUIET, str(prefix)]
        what = "The virtual environment could not be created."
        _require_done(ctx, _uv(ctx, argv, settings), settings, "venv", what)
    own = frozenset(read_states([WatchedFolder(path=str(prefix))]))
    with build.step("install"):
        _install_wheels(ctx, spec, prefix, settings)
    if spec.built:
        with build.step("build"):
            _build_packages(ctx, spec, prefix, build, settings)
    if spec.commit_packages:
        with build.step("checkout"):
            for one in spec.commit_packages:
                one.install(prefix / "lib" / f"python{spec.minor}" / "site-packages")
    (prefix / UV_LOCK).unlink(missing_ok=True)
    return own


def _install_wheels(ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, settings: IndexSettings) -> None:
    """Install wheels whose digests uv compares with the lock, through a cache that only this build uses.

    The files in the cache that all programs of this user share may have been changed since they were
    downloaded. Because the cache of this build is removed, its files can be linked into the environment
    instead of being copied, and afterwards nothing else refers to them.
    """
    wheels = [package for package in spec.packages if package.name not in spec.built]
    store = WheelStore(
        cache=ctx.cache,
        python=prefix / "bin" / "python",
        minor=spec.minor,
        settings=settings,
        work=ctx.workdir,
        command=ctx.command,
    )
    folder = store.collect(wheels)
    local = ("--offline", "--no-index", "--find-links", str(folder)) if folder else settings.uv_arguments()
    cache = prefix.parent / "downloads"
    argv = [uv_binary(), "pip", "sync", *_target(prefix), *local, _requirements(ctx, "wheels", wheels)]
    try:
        done = _uv(ctx, argv, settings, {"UV_CACHE_DIR": str(cache), "UV_LINK_MODE": "hardlink"})
        _require_done(ctx, done, settings, "install", "The locked packages could not be installed.")
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _build_packages(
    ctx: TaskContext,
    spec: EnvironmentSpec,
    prefix: Path,
    build: EnvironmentBuild,
    settings: IndexSettings,
) -> None:
    """Build packages without build isolation: the lock pins what their builds need."""
    # uv's shared cache keeps the wheels that were built. Its files are copied, so that no program of the cell
    # can change them.
    variables = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "UV_LINK_MODE": "copy",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    if spec.device.simulated and (site_packages / "torch_npu").is_dir():
        # Builds import torch, and a CUDA build of torch loads only with the stub libraries of the runtime.
        build.runtime = str(make_runtime(spec.device, site_packages, prefix.parent))
        variables["LD_LIBRARY_PATH"] = build.runtime
    for package in spec.packages:
        if package.name not in spec.built:
            continue
        added = spec.build_env.get(package.name, {})
        argv = [
            uv_binary(),
            *(
                "pip",
                "install",
                *_target(prefix),
                *settings.uv_arguments(),
                "--no-deps",
                "--no-build-isolation",
            ),
            *("--no-binary", package.name, "--requirements", _requirements(ctx, package.name, [package])),
            # No build reads these settings; uv makes them part of the name of the wheel in its cache.
            *(a for name, value in added.items() for a in ("--config-setting", f"npu-matrix-{name}={value}")),
        ]
        completed = _uv(ctx, argv, settings, {**variables, **added})
        what = f"{package.name} could not be built from its source package."
        _require_done(ctx, completed, settings, "build", what)


def _target(prefix: Path) -> list[str]:
    return ["--python", str(prefix / "bin" / "python"), "--require-hashes", *QUIET]


def _requirements(ctx: TaskContext, name: str, packages: Sequence[LockedPackage]) -> str:
    path = ctx.workdir / f"{name}.txt"
    path.write_text("".join(f"{package.requirement}\n" for package in packages), "utf-8")
    return str(path)


def _uv(
    ctx: TaskContext, argv: list[str], settings: IndexSettings, added: Mapping[str, str] | None = None
) -> Completed:
    variables = {**settings.uv_environment(), **(added or {})}
    return ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_INSTALL)


def _require_done(
    ctx: TaskContext, completed: Completed, settings: IndexSettings, step: str, what: str
) -> None:
    if completed.returncode == 0:
        return
    tail = redact_text(completed.tail)
    if completed.timed_out:
        raise InfrastructureError(
            f"{what} It took more than {SECONDS_TO_INSTALL:.0f} s.",
            why=tail[-500:],
            fix="run again: downloaded packages are cached",
        )
    if failure := fetch_failure(tail) or refusal_behind(parse_uv_failure(tail), settings, ctx.command):
        raise failure.error()
    if error := machine_failure(tail):
        raise error
    if "hash mismatch" in tail.lower():
        what = "A file on the package index has another digest than the locked one."
    raise BuildStepError(step, what, tail=tail)


def _patch(spec: EnvironmentSpec, site_packages: Path) -> None:
    if spec.patched is None:
        return
    try:
        install_patched(spec.patched, spec.manifest, site_packages)
    except MismatchError as error:
        raise BuildStepError("patch", f"{error}.") from error
