"""How a module of ours is started inside a built environment and on its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.devices.sim.start.sim_environment import LAUNCHER, simulated_environment


def cell_command(
    environment: Mapping[str, Any],
    bundle: Path,
    module: str,
    args: Sequence[str] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> tuple[list[str], dict[str, str]]:
    """Command line and added environment of `python -m module args` in a cell.

    `environment` are the measurements of a built `environment` outcome, `bundle` is what `make_bundle` gave.
    """
    device = environment["requested_device"]
    variables = {
        "PYTHONPATH": str(bundle),
        # The task's own files must not be importable by accident (Python 3.11 and later heed this).
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": environment["prefix"],
    }
    launcher: Sequence[str] = ()
    if device["kind"] == "sim":
        launcher = LAUNCHER
        variables |= simulated_environment(Path(environment["runtime"]), device, faults)
    elif device["kind"] == "cpu":
        # torch would load torch_npu, which stops where there is no CANN.
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [environment["python"], *launcher, "-m", module, *args]
    if environment.get("container"):
        from harness.builds.engines.container_command import contained_command

        needed = [bundle, *([Path(environment["runtime"])] if environment["runtime"] else [])]
        return contained_command(environment["container"], command, variables, needed=needed, device=device)
    return command, variables
