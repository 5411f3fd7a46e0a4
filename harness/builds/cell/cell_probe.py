"""Probes a cell's environment with its own Python: packages, patched files, modules and the device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from harness.builds.cell.build_step_error import BuildStepError
from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cell_command import cell_command
from harness.builds.cell.environment_spec import EnvironmentSpec
from harness.builds.engines.image_layers import OWN_FILES
from harness.cell_program.built_environment import (
    CellDevice,
    EnvironmentLocation,
    EnvironmentProbe,
    PatchedFile,
    PatchProbeReport,
    modules_to_import,
)
from harness.check import TaskContext
from harness.measurements import read_shape
from harness.package import PACKAGE_ROOT

PROBE = "harness.fixtures.environment_probe"
PATCH_PROBE = "harness.fixtures.patch_probe"
SECONDS_TO_PROBE = 300.0


def probe_cell(
    ctx: TaskContext,
    spec: EnvironmentSpec,
    location: EnvironmentLocation,
    site_packages: Path,
    *,
    compiles: bool = True,
) -> EnvironmentProbe:
    """Probe the environment at `location` with its Python; BuildStepError if the probe fails.

    compiles: whether Python stores the modules that it compiles, which makes every later start in this cell
    faster. Only the first probe of an environment may do so, because later its files must not change.
    """
    bundle = make_bundle(PACKAGE_ROOT, ctx.cache)
    patched = ctx.workdir / "patched.json"
    patched.write_text(json.dumps(spec.manifest), "utf-8")
    out = ctx.workdir / "probe.json"
    on_cpu = spec.device.kind == "cpu"
    modules = modules_to_import(spec.expected, spec.device.kind)
    args = ["--out", str(out), "--root", str(site_packages), "--files", str(patched)]
    if location.container is not None:
        args += ["--own", OWN_FILES]
    args += ["--device", "cpu" if on_cpu else "npu", "--modules", ",".join(modules)]
    argv, variables = cell_command(location, bundle, PROBE, args, compiles=compiles)
    with ctx.cards():
        completed = ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_PROBE)
    if completed.timed_out or completed.returncode != 0 or not out.is_file():
        ending = "did not end in time" if completed.timed_out else f"ended with code {completed.returncode}"
        raise BuildStepError(
            "probe", f"The environment could not be probed: the probe {ending}.", tail=completed.tail
        )
    probe = read_shape(EnvironmentProbe, out)
    return replace(probe, patched=_probe_patched(ctx, spec, location, bundle, patched))


def _probe_patched(
    ctx: TaskContext, spec: EnvironmentSpec, location: EnvironmentLocation, bundle: Path, expected: Path
) -> tuple[PatchedFile, ...] | None:
    """The file that an import in the cell would load for each patched path; None without patches."""
    if not spec.manifest:
        return None
    out = ctx.workdir / "patched-report.json"
    without_device = replace(location, requested_device=CellDevice(kind="cpu"))
    argv, variables = cell_command(without_device, bundle, PATCH_PROBE, [str(expected), str(out)])
    completed = ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_PROBE)
    if completed.returncode != 0 or not out.is_file():
        raise BuildStepError("probe", "The patched files could not be inspected.", tail=completed.tail)
    return read_shape(PatchProbeReport, out).files
