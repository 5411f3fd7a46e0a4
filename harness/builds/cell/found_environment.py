"""The check `environment` with the engine `found`: an environment that exists is compared, never changed.

Inside somebody's container or pod, torch_npu, vllm-ascend and verl are installed already. They are read and
compared with the versions of the cell; the other checks then run in this environment as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cann_variables import selected_toolkit
from harness.builds.cell.cell_command import cell_command
from harness.builds.cell.cell_probe import PROBE, SECONDS_TO_PROBE
from harness.builds.cell.environment_build import environment_evidence, make_runtime
from harness.builds.cell.environment_files import IDENTITY
from harness.builds.installed.found_python import (
    changed_files,
    compared,
    found_python,
    named_packages,
    read_found,
    why_other,
)
from harness.cell_program.built_environment import (
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentNotBuilt,
    EnvironmentProbe,
    modules_to_import,
    read_cell_device,
)
from harness.check import TaskContext
from harness.devices.sim.runtime_build.stand_in_cann import install_runtime
from harness.digest import digest_json
from harness.errors import InfrastructureError, Location
from harness.matrix.model.environment_facets import PinsFacet, PlatformFacet
from harness.measurements import read_shape
from harness.outcome import Measured
from harness.package import PACKAGE_ROOT
from harness.sources.packages.lockfile import normal_name


def run(ctx: TaskContext) -> Measured[EnvironmentBuilt | EnvironmentNotBuilt]:
    """Compare the environment with the cell, and probe it."""
    device = read_cell_device(ctx.facets["device"])
    found = read_found(found_python(os.environ))
    if found.identity != device.found:
        # The key names the environment for which the run was planned.
        raise InfrastructureError(
            "the environment has changed since this run began",
            where=Location(found.prefix),
            why="packages were installed, or their files were edited, added or removed",
            fix="run again: the next run reads the environment as it is then",
        )
    pins = read_shape(PinsFacet, ctx.facets["pins"])
    platform = read_shape(PlatformFacet, ctx.facets["platform"])
    expected = {name: found.packages[name].version for name in named_packages(pins) if name in found.packages}
    differences = [*compared(found, pins, platform), *changed_files(found, list(expected))]
    location = EnvironmentLocation(requested_device=device, python=found.python, prefix=found.prefix)
    if device.rehearsed:
        home = ctx.cache / "found" / found.identity[:32]
        install_runtime(make_runtime(device, Path(found.site_packages), home), os.environ)
    measured = EnvironmentBuilt(
        requested_device=device,
        python=location.python,
        prefix=location.prefix,
        runtime="",
        site_packages=found.site_packages,
        digest=found.identity,
        reused=False,
        expected=expected,
        left_out={},
        built_here=(),
        from_repositories=tuple(normal_name(one.package) for one in pins.from_source),
        patched={},
        probe=_probe(ctx, location, expected),
        seconds={},
        toolkit=selected_toolkit(os.environ),
        differences=tuple(differences),
        deviations=found.deviations,
    )
    identity = {"found": found.identity, "toolkit": digest_json(dict(measured.toolkit))}
    (ctx.workdir / IDENTITY).write_text(json.dumps(identity, indent=1), "utf-8")
    return Measured(
        measurements=measured, evidence=environment_evidence(measured), artifacts={IDENTITY: IDENTITY}
    )


def holds(measurements: EnvironmentBuilt) -> str:
    """Why an environment can no longer be used as it was found, or ""."""
    if not Path(measurements.python).exists():
        return f"{measurements.python} is gone"
    return why_other(read_found(measurements.python), measurements.digest, measurements.deviations)


def _probe(ctx: TaskContext, location: EnvironmentLocation, expected: Mapping[str, str]) -> EnvironmentProbe:
    out = ctx.workdir / "probe.json"
    kind = location.requested_device.kind
    modules = ",".join(modules_to_import(expected, kind))
    args = ["--out", str(out), "--device", "cpu" if kind == "cpu" else "npu", "--modules", modules]
    argv, variables = cell_command(location, make_bundle(PACKAGE_ROOT, ctx.cache), PROBE, args)
    with ctx.cards():
        completed = ctx.command(argv, env=variables, cwd=ctx.workdir, timeout=SECONDS_TO_PROBE)
    if completed.timed_out or completed.returncode != 0 or not out.is_file():
        raise InfrastructureError(
            "the environment could not be probed as it was found",
            why=completed.tail.strip()[-500:] or f"exit code {completed.returncode}",
            fix=f"try it: {location.python} -c 'import torch, torch_npu'",
        )
    return read_shape(EnvironmentProbe, out)
