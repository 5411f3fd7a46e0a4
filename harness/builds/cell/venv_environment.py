"""Can the cell's environment be built, and does it hold what was locked? A virtual environment per content.

An environment cannot be built aside and moved into place (its scripts hold its path), so it is built where it
stays and counts only once its `finished.json` is there; a folder without one is what a killed build left, and
goes.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from harness.builds.cell.cell_probe import probe_cell
from harness.builds.cell.disk_space import require_disk_space
from harness.builds.cell.environment_spec import LAYOUT, BuildStepError, EnvironmentSpec, environment_spec
from harness.builds.cell.patched_files import MismatchError, install_patched
from harness.check import Completed, TaskContext
from harness.devices.sim.runtime_build.cann_toolkit import write_toolkit
from harness.devices.sim.runtime_build.runtime_library import build_runtime
from harness.devices.sim.start.sim_environment import DEFAULT_CANN
from harness.digest import digest_file
from harness.errors import InfrastructureError, InputError, Location
from harness.evidence import evidence_of, read_device_facts
from harness.outcome import Evidence, Measured, Outcome
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.lockfile import LockedPackage, normal_name

FINISHED = "finished.json"
DRIVEN_PACKAGES = ("verl", "torch-npu", "transformers", "vllm", "vllm-ascend")
QUIET = ("--quiet", "--color", "never")
# As `uv pip install --dry-run` says that a package is not in its cache.
WOULD_FETCH = "Would download"
SECONDS_TO_INSTALL = 1500.0
SECONDS_TO_WAIT = 1800.0
TAIL_CHARACTERS = 4000


@dataclass(kw_only=True)
class EnvironmentBuild:
    """What is known so far; becomes the measurements."""

    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step's wall time."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - started, 3)

    def fail(self, error: BuildStepError) -> None:
        """Take down where the build ended; InfrastructureError when it was this machine that failed."""
        if failure := machine_failure(error.tail):
            raise failure from error
        self.facts |= {
            "step": error.step,
            "reason": error.reason,
            "tail": error.tail[-TAIL_CHARACTERS:],
            "unsupported": error.unsupported,
        }


def run(ctx: TaskContext) -> Measured:
    """Build the environment of the facets and look inside.

    A build that fails is a measurement (`built` false, with the step, the reason and the end of its output).
    InfrastructureError when the network or this machine failed.
    """
    progress = EnvironmentBuild(
        facts={
            "built": False,
            "unsupported": False,
            "requested_device": dict(ctx.facets["device"]),
            "expected": {},
            "python": "",
            "prefix": "",
            "left_out": {},
            "built_here": [],
            "runtime": "",
            "probe": None,
        }
    )
    try:
        spec = environment_spec(ctx)
        progress.facts |= {
            "expected": _expected(spec),
            "left_out": dict(spec.omitted),
            "built_here": list(spec.built),
        }
        _build(ctx, spec, progress)
    except BuildStepError as error:
        ctx.log(f"{error.step}: {error.reason}")
        progress.fail(error)
    except OSError as error:
        raise machine_failure(str(error)) or InfrastructureError(
            "the environment could not be stored",
            where=Location(str(error.filename or ctx.cache)),
            why=str(error),
        ) from error
    progress.facts["seconds"] = progress.seconds
    return Measured(measurements=progress.facts, evidence=evidence(progress.facts))


def holds(outcome: Outcome) -> str:
    """Why an earlier build can no longer be used, or ""."""
    facts = outcome.measurements
    if not facts.get("built"):
        return ""
    home = Path(facts["prefix"]).parent
    if not (home / FINISHED).is_file():
        return f"the environment in {home} is gone"
    if not Path(facts["python"]).exists():
        return f"the interpreter {facts['python']} is gone"
    if facts["runtime"] and not Path(facts["runtime"]).is_dir():
        return f"the simulated runtime in {facts['runtime']} is gone"
    if not facts.get("site_packages"):
        return ""
    found = {normal_name(name): version for name, version in facts["probe"]["packages"].items()}
    return _lost_file(Path(facts["site_packages"]), found)


def _lost_file(site_packages: Path, packages: Mapping[str, str]) -> str:
    """Which file of what the checks drive is no longer there, by the installer's own record, or ""."""
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
            # Scripts stand outside and bytecode comes and goes.
            if not path or path.startswith("..") or path.endswith(".pyc"):
                continue
            if not (site_packages / path).exists():
                return f"{site_packages / path} is gone"
    return ""


def _build(ctx: TaskContext, spec: EnvironmentSpec, progress: EnvironmentBuild) -> None:
    home = ctx.cache / "cells" / spec.digest
    home.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(home.with_suffix(".lock"), timeout=SECONDS_TO_WAIT)
    try:
        with lock:
            try:
                _build_locked(ctx, spec, home, progress)
            except (BuildStepError, InfrastructureError, OSError):
                # Where it failed because the disk is full, outcomes need the room.
                if not (home / FINISHED).is_file():
                    shutil.rmtree(home, ignore_errors=True)
                raise
    except filelock.Timeout as error:
        raise InfrastructureError(
            "another process has been building this environment for too long",
            where=Location(home.with_suffix(".lock")),
            fix="wait for it, or end it",
        ) from error


def _build_locked(
    ctx: TaskContext, spec: EnvironmentSpec, home: Path, progress: EnvironmentBuild, *, fresh: bool = False
) -> None:
    prefix = home / "venv"
    python = prefix / "bin" / "python"
    reused = (home / FINISHED).is_file() and python.exists() and not fresh
    if not reused:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install(ctx, spec, prefix, progress)
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    progress.facts |= {
        "python": str(python),
        "prefix": str(prefix),
        "site_packages": str(site_packages),
        "digest": spec.digest,
        "reused": reused,
    }
    if not reused:
        with progress.step("patch"):
            _patch(spec, site_packages)
    if spec.device["kind"] == "sim" and not progress.facts["runtime"]:
        with progress.step("runtime"):
            progress.facts["runtime"] = str(make_runtime(ctx, spec, site_packages))
    with progress.step("probe"):
        progress.facts["probe"] = probe_cell(ctx, spec, progress.facts, site_packages)
    if reused and _damaged(spec, progress.facts["probe"]):
        ctx.log("the environment is not as it was built; building it again")
        _build_locked(ctx, spec, home, progress, fresh=True)
        return
    if not reused:
        _write_atomically(home / FINISHED, {"lock": digest_file(spec.lock), "layout": LAYOUT})
    progress.facts |= {
        "built": True,
        "patched": {name: expected.get("post") or "" for name, expected in spec.manifest.items()},
        "step": "",
        "reason": "",
        "tail": "",
    }


def _install(ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, progress: EnvironmentBuild) -> None:
    settings = index_environment(os.environ).with_indexes(spec.indexes)
    # A settings file here keeps uv from taking one of the folders above, which belong to something else.
    ctx.workdir.joinpath("uv.toml").write_text("", "utf-8")
    with progress.step("venv"):
        argv = [uv_binary(), "venv", "--python", spec.interpreter, "--no-project", *QUIET, str(prefix)]
        _require_done(
            _uv(ctx, argv, settings), "venv", settings, "The virtual environment could not be made."
        )
    _require_room(ctx, spec, prefix, settings)
    wheels = [package for package in spec.packages if package.name not in spec.built]
    with progress.step("install"):
        argv = [uv_binary(), "pip", "sync", *_target(prefix, settings), _requirements(ctx, "wheels", wheels)]
        _require_done(
            _uv(ctx, argv, settings), "install", settings, "The locked packages could not be installed."
        )
    if spec.built:
        with progress.step("build"):
            _build_packages(ctx, spec, prefix, progress, settings)
    if spec.checkouts:
        with progress.step("checkout"):
            for one in spec.checkouts:
                one.install(prefix / "lib" / f"python{spec.minor}" / "site-packages")


def _require_room(ctx: TaskContext, spec: EnvironmentSpec, prefix: Path, settings: IndexSettings) -> None:
    folder = _uv(ctx, [uv_binary(), "cache", "dir", "--color", "never"], settings).tail.strip()

    def kept(package: LockedPackage) -> bool:
        argv = [uv_binary(), "pip", "install", "--python", str(prefix / "bin" / "python"), "--color", "never"]
        argv += ["--dry-run", "--offline", "--no-deps", *settings.uv_arguments()]
        done = _uv(ctx, [*argv, f"{package.name}=={package.version}"], settings)
        return done.returncode == 0 and WOULD_FETCH not in done.tail

    mode = settings.uv_environment().get("UV_LINK_MODE", "")
    require_disk_space(
        spec.packages, cells=prefix.parent.parent, wheels=Path(folder), link_mode=mode, is_kept=kept
    )


def _build_packages(
    ctx: TaskContext,
    spec: EnvironmentSpec,
    prefix: Path,
    progress: EnvironmentBuild,
    settings: IndexSettings,
) -> None:
    """Build packages inside the environment itself: its lock pins what their builds need."""
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    site_packages = prefix / "lib" / f"python{spec.minor}" / "site-packages"
    if spec.device["kind"] == "sim" and (site_packages / "torch_npu").is_dir():
        # Builds import torch, and a CUDA build of torch loads on the stand-ins only.
        progress.facts["runtime"] = str(make_runtime(ctx, spec, site_packages))
        variables["LD_LIBRARY_PATH"] = progress.facts["runtime"]
    for package in spec.packages:
        if package.name not in spec.built:
            continue
        told = spec.build_env.get(package.name, {})
        argv = [
            uv_binary(),
            *("pip", "install", *_target(prefix, settings), "--no-deps", "--no-build-isolation"),
            *("--no-binary", package.name, "--requirements", _requirements(ctx, package.name, [package])),
            # Nothing reads them, but they are part of the name under which uv keeps what it built.
            *(a for name, value in told.items() for a in ("--config-setting", f"npu-matrix-{name}={value}")),
        ]
        completed = _uv(ctx, argv, settings, {**variables, **told})
        _require_done(
            completed, "build", settings, f"{package.name} could not be built from its source package."
        )


def _target(prefix: Path, settings: IndexSettings) -> list[str]:
    python = str(prefix / "bin" / "python")
    return ["--python", python, "--require-hashes", *settings.uv_arguments(), *QUIET]


def _requirements(ctx: TaskContext, name: str, packages: Sequence[LockedPackage]) -> str:
    path = ctx.workdir / f"{name}.txt"
    path.write_text("".join(f"{package.requirement}\n" for package in packages), "utf-8")
    return str(path)


def _uv(
    ctx: TaskContext, argv: list[str], settings: IndexSettings, told: Mapping[str, str] | None = None
) -> Completed:
    variables = {**settings.uv_environment(), **(told or {})}
    return ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_INSTALL)


def _require_done(completed: Completed, step: str, settings: IndexSettings, what: str) -> None:
    if completed.returncode == 0:
        return
    tail = settings.hide(completed.tail)
    if completed.timed_out:
        raise InfrastructureError(
            f"{what} It took more than {SECONDS_TO_INSTALL:.0f} s.",
            why=tail[-500:],
            fix="run again: what was fetched is kept",
        )
    if failure := fetch_failure(tail):
        raise failure.error()
    if error := machine_failure(tail):
        raise error
    if "hash mismatch" in tail.lower():
        what = "A file of the package index is not the one that was locked."
    raise BuildStepError(step, what, tail=tail)


def _patch(spec: EnvironmentSpec, site_packages: Path) -> None:
    if spec.patched is None:
        return
    try:
        install_patched(spec.patched, spec.manifest, site_packages)
    except MismatchError as error:
        raise BuildStepError("patch", f"{error}.") from error


def make_runtime(ctx: TaskContext, spec: EnvironmentSpec, site_packages: Path) -> Path:
    """Build the simulated CANN runtime for the torch_npu in `site_packages`.

    BuildStepError when this torch_npu cannot run on it.
    """
    try:
        runtime = build_runtime(site_packages, ctx.cache)
        write_toolkit(runtime, str(spec.device.get("cann") or DEFAULT_CANN))
        return runtime
    except InputError as error:
        raise BuildStepError(
            "runtime", "The simulated runtime cannot stand under this torch_npu.", tail=str(error)
        ) from error


def _damaged(spec: EnvironmentSpec, probe: Mapping[str, Any]) -> bool:
    there = {
        # What is built here marks its version with what it was built for.
        name: version.partition("+")[0] if name in spec.built else version
        for name, version in ((normal_name(name), v) for name, v in probe["packages"].items())
    }
    changed = any(probe["files"][name] != (e.get("post") or "") for name, e in spec.manifest.items())
    return changed or there != _expected(spec)


def _expected(spec: EnvironmentSpec) -> dict[str, str]:
    """What the environment holds: name -> version."""
    locked = {package.name: package.version for package in spec.packages}
    return locked | {one.package: one.version for one in spec.checkouts}


def _write_atomically(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value), "utf-8")
    temporary.replace(path)


def evidence(facts: Mapping[str, Any]) -> Evidence:
    """What the measurements of an environment prove, by the device that was probed."""
    if not facts["built"]:
        return Evidence.STATIC
    return evidence_of(read_device_facts(facts["probe"]["device"]))
