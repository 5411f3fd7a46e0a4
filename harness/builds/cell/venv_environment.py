"""The check `environment` with the engine `venv`: one virtual environment for each content.

The scripts of a virtual environment contain its path, so it cannot be built elsewhere and then moved. It is
built in its final folder and is complete once `finished.json` is there. A folder without that file is left
from a build that was killed, and is removed.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from harness.builds.cell.cell_probe import probe_cell
from harness.builds.cell.disk_space import require_disk_space
from harness.builds.cell.environment_build import EnvironmentBuild, environment_evidence, make_runtime
from harness.builds.cell.environment_judge import file_reasons, package_reasons
from harness.builds.cell.environment_spec import LAYOUT, BuildStepError, EnvironmentSpec
from harness.builds.cell.patched_files import MismatchError, install_patched
from harness.cell_program.built_environment import (
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentNotBuilt,
    EnvironmentProbe,
    read_cell_device,
)
from harness.check import Completed, TaskContext
from harness.digest import digest_file
from harness.errors import InfrastructureError, Location
from harness.outcome import Measured
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage, normal_name
from harness.sources.redact import redact_text

FINISHED = "finished.json"
DRIVEN_PACKAGES = ("verl", "torch-npu", "transformers", "vllm", "vllm-ascend")
QUIET = ("--quiet", "--color", "never")
# What `uv pip install --dry-run` prints for a package that is not in its cache.
WOULD_FETCH = "Would download"
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
    return Measured(measurements=measured, evidence=environment_evidence(measured))


def holds(measurements: EnvironmentBuilt) -> str:
    """Why a virtual environment can no longer be used, or ""."""
    home = Path(measurements.prefix).parent
    if not (home / FINISHED).is_file():
        return f"the environment in {home} is gone"
    if not Path(measurements.python).exists():
        return f"the interpreter {measurements.python} is gone"
    if measurements.runtime and not Path(measurements.runtime).is_dir():
        return f"the simulated runtime in {measurements.runtime} is gone"
    packages = {normal_name(name): version for name, version in measurements.probe.packages.items()}
    return _lost_file(Path(measurements.site_packages), packages)


def _lost_file(site_packages: Path, packages: Mapping[str, str]) -> str:
    """The first missing file of the packages that checks run, according to their RECORD files, or ""."""
    for name in DRIVEN_PACKAGES:
        if name not in packages:
            continue
        record = site_packages / f"{name.replace('-', '_')}-{packages[name]}.dist-info" / "RECORD"
        try:
            entries = list(csv.reader(record.read_text("utf-8").splitlines()))
        except OSError:
            return f"{record} is gone"
        for entry in entries:
            path = entry[0] if entry else ""
            # Scripts are outside site-packages, and bytecode is written and removed at any time.
            if not path or path.startswith("..") or path.endswith(".pyc"):
                continue
            if not (site_packages / path).exists():
                return f"{site_packages / path} is gone"
    return ""


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
    ctx: TaskContext, spec: EnvironmentSpec, home: Path, build: EnvironmentBuild, *, fresh: bool = False
) -> EnvironmentBuilt:
    prefix = home / "venv"
    python = prefix / "bin" / "python"
    reused = (home / FINISHED).is_file() and python.exists() and not fresh
    if not reused:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(ctx, spec, prefix, build)
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    if not reused:
        with build.step("patch"):
            _patch(spec, site_packages)
    if spec.device.kind == "sim" and not build.runtime:
        with build.step("runtime"):
            build.runtime = str(make_runtime(ctx, spec, site_packages))
    location = EnvironmentLocation(
        requested_device=spec.device, python=str(python), prefix=str(prefix), runtime=build.runtime
    )
    with build.step("probe"):
        probe = probe_cell(ctx, spec, location, site_packages)
    if reused and _is_damaged(spec, probe):
        ctx.log("the environment has changed since it was built; building it again")
        return _build_locked(ctx, spec, home, build, fresh=True)
    if not reused:
        _write_atomically(home / FINISHED, {"lock": digest_file(spec.lock), "layout": LAYOUT})
    return build.finished(
        spec, location, probe, site_packages=site_packages, digest=spec.digest, reused=reused
    )


def _install(ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, build: EnvironmentBuild) -> None:
    settings = index_environment(os.environ).with_indexes(spec.indexes)
    # Without a settings file here uv would read one in a parent folder.
    ctx.workdir.joinpath("uv.toml").write_text("", "utf-8")
    with build.step("venv"):
        argv = [uv_binary(), "venv", "--python", spec.interpreter, "--no-project", *QUIET, str(prefix)]
        _require_done(_uv(ctx, argv, settings), "venv", "The virtual environment could not be created.")
    _require_disk_space(ctx, spec, prefix, settings)
    wheels = [package for package in spec.packages if package.name not in spec.built]
    with build.step("install"):
        argv = [uv_binary(), "pip", "sync", *_target(prefix, settings), _requirements(ctx, "wheels", wheels)]
        _require_done(_uv(ctx, argv, settings), "install", "The locked packages could not be installed.")
    if spec.built:
        with build.step("build"):
            _build_packages(ctx, spec, prefix, build, settings)
    if spec.commit_packages:
        with build.step("checkout"):
            for one in spec.commit_packages:
                one.install(prefix / "lib" / f"python{spec.minor}" / "site-packages")


def _require_disk_space(
    ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, settings: IndexSettings
) -> None:
    folder = _uv(ctx, [uv_binary(), "cache", "dir", "--color", "never"], settings).tail.strip()

    def is_cached(package: LockedPackage) -> bool:
        argv = [uv_binary(), "pip", "install", "--python", str(prefix / "bin" / "python"), "--color", "never"]
        argv += ["--dry-run", "--offline", "--no-deps", *settings.uv_arguments()]
        done = _uv(ctx, [*argv, f"{package.name}=={package.version}"], settings)
        return done.returncode == 0 and WOULD_FETCH not in done.tail

    mode = settings.uv_environment().get("UV_LINK_MODE", "")
    require_disk_space(
        spec.packages, cells=prefix.parent.parent, wheels=Path(folder), link_mode=mode, is_cached=is_cached
    )


def _build_packages(
    ctx: TaskContext,
    spec: EnvironmentSpec,
    prefix: Path,
    build: EnvironmentBuild,
    settings: IndexSettings,
) -> None:
    """Build packages without build isolation: the lock pins what their builds need."""
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    if spec.device.kind == "sim" and (site_packages / "torch_npu").is_dir():
        # Builds import torch, and a CUDA build of torch loads only with the stub libraries of the runtime.
        build.runtime = str(make_runtime(ctx, spec, site_packages))
        variables["LD_LIBRARY_PATH"] = build.runtime
    for package in spec.packages:
        if package.name not in spec.built:
            continue
        added = spec.build_env.get(package.name, {})
        argv = [
            uv_binary(),
            *("pip", "install", *_target(prefix, settings), "--no-deps", "--no-build-isolation"),
            *("--no-binary", package.name, "--requirements", _requirements(ctx, package.name, [package])),
            # No build reads these settings; uv makes them part of the name of the wheel in its cache.
            *(a for name, value in added.items() for a in ("--config-setting", f"npu-matrix-{name}={value}")),
        ]
        completed = _uv(ctx, argv, settings, {**variables, **added})
        _require_done(completed, "build", f"{package.name} could not be built from its source package.")


def _target(prefix: Path, settings: IndexSettings) -> list[str]:
    python = str(prefix / "bin" / "python")
    return ["--python", python, "--require-hashes", *settings.uv_arguments(), *QUIET]


def _requirements(ctx: TaskContext, name: str, packages: Sequence[LockedPackage]) -> str:
    path = ctx.workdir / f"{name}.txt"
    path.write_text("".join(f"{package.requirement}\n" for package in packages), "utf-8")
    return str(path)


def _uv(
    ctx: TaskContext, argv: list[str], settings: IndexSettings, added: Mapping[str, str] | None = None
) -> Completed:
    variables = {**settings.uv_environment(), **(added or {})}
    return ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_INSTALL)


def _require_done(completed: Completed, step: str, what: str) -> None:
    if completed.returncode == 0:
        return
    tail = redact_text(completed.tail)
    if completed.timed_out:
        raise InfrastructureError(
            f"{what} It took more than {SECONDS_TO_INSTALL:.0f} s.",
            why=tail[-500:],
            fix="run again: downloaded packages are cached",
        )
    if failure := fetch_failure(tail):
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


def _is_damaged(spec: EnvironmentSpec, probe: EnvironmentProbe) -> bool:
    """Whether a file or a package of a reused environment differs from what was built."""
    return bool(
        package_reasons(spec.expected, probe.packages, spec.built)
        or file_reasons(spec.patched_digests, probe.files)
    )


def _write_atomically(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    temporary.replace(path)
