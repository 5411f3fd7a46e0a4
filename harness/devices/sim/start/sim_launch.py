"""`python -m harness.devices.sim.start.sim_launch [-m MODULE | SCRIPT] ARGS...`: run a program on the
simulated device.

Like `coverage run`: the device is installed, then the program runs as `__main__` with its own arguments.
Exit code 4 with one message when the device cannot be set up, 2 for bad usage, else the program's own.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.devices.sim.faults import fault_spec
from harness.devices.sim.start import sim_probe
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, HarnessError, InfrastructureError, InputError
from harness.evidence import RUNTIME_LIBRARY, runtime_library
from harness.package import data_folder

if TYPE_CHECKING:
    from harness.devices.sim.start.overlay import Simulation

REPORT_VARIABLE = "NPU_SIM_REPORT"

_USAGE = "usage: python -m harness.devices.sim.start.sim_launch [-m MODULE | SCRIPT] ARGS..."


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run: a module's name or a script's path, and its arguments."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]


def parse_program(arguments: Sequence[str]) -> Program:
    """The program of a command line; InputError when there is none."""
    if arguments and arguments[0] == "-m":
        if len(arguments) < 2:
            raise InputError("-m needs the name of a module", fix=_USAGE)
        return Program(target=arguments[1], is_module=True, arguments=tuple(arguments[2:]))
    if not arguments or arguments[0].startswith("-"):
        raise InputError("there is no program to run", fix=_USAGE)
    return Program(target=arguments[0], is_module=False, arguments=tuple(arguments[1:]))


def set_up() -> None:
    """Install the simulated device in this process and publish its facts.

    InfrastructureError without the simulated runtime or torch_npu; InputError for bad fault specifications.
    """
    library = runtime_library()
    if library is None:
        raise InfrastructureError(
            f"the loader finds no {RUNTIME_LIBRARY}",
            fix="put the simulated runtime's folder on LD_LIBRARY_PATH before Python starts",
        )
    if not sim_probe.is_simulated(library):
        raise InfrastructureError(
            "this is a real CANN runtime: simulated evidence refused",
            why=f"{RUNTIME_LIBRARY} carries no sentinel",
            fix="run without the simulated device, or put its folder first on LD_LIBRARY_PATH",
        )
    # Before the seconds that the imports take.
    fault_spec.parse_faults(os.environ.get(fault_spec.VARIABLE, ""))
    try:
        import torch  # noqa: F401
        import torch_npu  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        raise InfrastructureError(
            "torch and torch_npu cannot be imported",
            why=str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
            fix="install torch and the torch-npu made for it into this environment",
        ) from error
    from harness.devices.sim.collectives import hccl
    from harness.devices.sim.runtime_build import cann_toolkit
    from harness.devices.sim.start import overlay, triton_interpreter

    simulation = overlay.install()
    if triton_interpreter.is_requested():
        triton_interpreter.install(simulation.machine)
    _offer_pyacl()
    # Not for this process, which has the device: there it would be one package more than the cell's.
    _offer(data_folder("devices/sim/start/vllm_platform"))
    cann_toolkit.offer_npu_smi()
    hccl.install(simulation.machine)
    sim_probe.publish_facts("npu:0")
    report = os.environ.get(REPORT_VARIABLE)
    if report:
        atexit.register(_write_report, Path(report), simulation)


def run(program: Program) -> None:
    """Run the program as `__main__`; returns when it ends, or raises what it raises."""
    sys.argv[:] = [program.target, *program.arguments]
    if program.is_module:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        # Python was started with -m, so its first folder is the working directory, not the script's.
        sys.path[0] = str(Path(program.target).parent)
    runpy.run_path(program.target, run_name="__main__")


def main(arguments: Sequence[str]) -> int:
    """Set up and run; the exit code when the program does not set its own."""
    try:
        program = parse_program(arguments)
        if not program.is_module and not Path(program.target).is_file():
            raise InputError(f"there is no script {program.target!r}", fix=_USAGE)
        set_up()
    except HarnessError as error:
        print(f"npu-sim: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InputError) else EXIT_INCOMPLETE
    run(program)
    return 0


def _offer_pyacl() -> None:
    """Let this process and those it starts import `acl`, by which Ray counts NPUs."""
    if importlib.util.find_spec("acl") is None:
        sys.path.append(_offer(data_folder("devices/sim/start/pyacl")))


def _offer(place: Path) -> str:
    """Put a folder of this package on the path of the processes that this one starts."""
    folder = str(place)
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join((*known, folder))
    return folder


def _write_report(path: Path, simulation: Simulation) -> None:
    """One JSON line per process: which faults hit, which operators were called."""
    entry = {"pid": os.getpid(), "simulated": True, **simulation.faults.report()}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
