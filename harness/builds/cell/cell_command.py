"""Starts modules of this project inside a built environment, on the device of the cell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.builds.cell.bundle import make_bundle
from harness.builds.cell.cann_variables import cann_variables
from harness.builds.engines.container_command import contained_command
from harness.builds.ownership.cache_use import CacheUse
from harness.cell_program.built_environment import CellDevice, EnvironmentLocation, environment_location
from harness.check import CellCommand
from harness.devices.sim.runtime_build.stand_in_cann import library_folder
from harness.devices.sim.start.sim_environment import LAUNCHER, simulated_environment
from harness.outcome import Outcome
from harness.package import PACKAGE_ROOT


def cell_launcher(cache: Path) -> CellCommand:
    """A function that returns the command and environment variables to start a module inside a built cell.

    While the function exists, the cache is marked as used, so that `cleanup` keeps its entries.
    """
    use = CacheUse(cache)

    def command_of(
        environment: Outcome, module: str, args: Sequence[str], *, on_cpu: bool = False
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        bundle = make_bundle(PACKAGE_ROOT, use.cache)
        location = environment_location(environment)
        if on_cpu:
            location = replace(location, requested_device=CellDevice(kind="cpu"))
        return cell_command(location, bundle, module, args)

    return command_of


def cell_command(
    environment: EnvironmentLocation,
    bundle: Path,
    module: str,
    args: Sequence[str] = (),
    faults: Sequence[Mapping[str, Any]] = (),
    *,
    compiles: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command line of `python -m module args` in a cell, and the environment variables to add.

    bundle: the folder that `make_bundle` returned. faults: faults to inject into the simulated device.
    compiles: whether Python stores the modules that it compiles in the environment.
    """
    device = environment.requested_device
    variables = {
        "PYTHONPATH": str(bundle),
        # Files of the task must not be imported by accident (Python 3.11 and later respect this).
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        # A task must not change its environment.
        "PYTHONDONTWRITEBYTECODE": "" if compiles else "1",
        "VIRTUAL_ENV": environment.prefix,
    }
    launcher: Sequence[str] = ()
    if device.kind == "sim":
        launcher = LAUNCHER
        variables |= simulated_environment(Path(environment.runtime), device, faults)
    elif device.kind == "npu" and environment.container is None:
        host = cann_variables(os.environ)
        path = [variables["PYTHONPATH"], *filter(None, [host.pop("PYTHONPATH", "")])]
        variables = {**host, **variables, "PYTHONPATH": os.pathsep.join(path)}
    elif device.kind == "cpu":
        # torch would load torch_npu, which fails where there is no CANN.
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        if environment.runtime:
            # Without the stubs of NVIDIA's libraries in this folder, a CUDA build of torch cannot load.
            variables["LD_LIBRARY_PATH"] = environment.runtime
    command = [environment.python, *launcher, "-m", module, *args]
    if environment.container is None:
        return command, variables
    needed = [bundle, *([Path(environment.runtime)] if environment.runtime else [])]
    if device.rehearsed and device.kind == "npu":
        # The image has the folders of a stand-in for CANN, and this host its libraries.
        needed.append(library_folder(os.environ))
    return contained_command(
        environment.container, command, variables, needed=needed, has_npu=device.kind == "npu"
    )
