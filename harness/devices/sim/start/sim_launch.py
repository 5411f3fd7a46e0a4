"""Runs a program on the simulated device.

    python -m harness.devices.sim.start.sim_launch [-m MODULE | SCRIPT] ARGS...

As with `coverage run`, the device is installed first, then the program runs as `__main__` with its own
arguments. The exit code is 4 when the device cannot be set up, 2 for invalid arguments, otherwise that of the
program.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import runpy
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.devices.sim.faults import fault_spec
from harness.devices.sim.faults.fault_spec import FaultSpec
from harness.devices.sim.refusals.permissive_calls import note_permissive
from harness.devices.sim.runtime_build import cann_toolkit
from harness.devices.sim.start import overlay, sim_probe
from harness.devices.sim.start.sim_environment import REPORT_VARIABLE
from harness.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, HarnessError, InfrastructureError, InputError
from harness.evidence import RUNTIME_LIBRARY, runtime_library
from harness.package import data_folder

_USAGE = "usage: python -m harness.devices.sim.start.sim_launch [-m MODULE | SCRIPT] ARGS..."


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program to run. target: name of a module or path of a script."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]


def parse_program(arguments: Sequence[str]) -> Program:
    """The program that a command line names; InputError when it names none."""
    if arguments and arguments[0] == "-m":
        if len(arguments) < 2:
            raise InputError("-m must be followed by the name of a module", fix=_USAGE)
        return Program(target=arguments[1], is_module=True, arguments=tuple(arguments[2:]))
    if not arguments or arguments[0].startswith("-"):
        raise InputError("there is no program to run", fix=_USAGE)
    return Program(target=arguments[0], is_module=False, arguments=tuple(arguments[1:]))


def set_up() -> None:
    """Install the simulated device in this process and publish its facts.

    InfrastructureError without the simulated runtime or torch_npu; InputError for invalid faults.
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
            why=f"{RUNTIME_LIBRARY} does not have the symbol that marks the simulated runtime",
            fix="run without the simulated device, or put its folder first on LD_LIBRARY_PATH",
        )
    # Invalid faults are reported before the imports, which take seconds.
    faults = fault_spec.parse_faults(os.environ.get(fault_spec.VARIABLE, ""))
    try:
        import torch  # noqa: F401
        import torch_npu  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:
        raise InfrastructureError(
            "torch and torch_npu cannot be imported",
            why=str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__,
            fix="install torch and the matching torch-npu into this environment",
        ) from error
    install(faults)
    if not sim_probe.device_facts().count:
        raise InfrastructureError(
            "no simulated device is visible in this process",
            fix="unset ASCEND_RT_VISIBLE_DEVICES or set NPU_SIM_COUNT to 1 or more",
        )
    # Only for child processes. In this process the folders would count as packages of the cell.
    _add_to_pythonpath(data_folder("devices/sim/start/child_processes"), first=True)
    _add_to_pythonpath(data_folder("devices/sim/start/vllm_platform"))


def install(faults: Iterable[FaultSpec]) -> None:
    """Install the simulated device in this process, which has imported torch_npu, and publish its facts."""
    # Imported here because they import torch.
    from harness.devices.sim.start import triton_interpreter

    if overlay.installed() is not None:
        return  # A launched child of a launched program: the hook on torch_npu came first.
    report = os.environ.get(REPORT_VARIABLE)

    def note(operator: str | None) -> None:
        if report:
            note_permissive(Path(report), None if operator is None else [operator])

    simulation = overlay.install(faults, note)
    if triton_interpreter.is_requested():
        triton_interpreter.install(simulation.machine)
    _provide_pyacl()
    cann_toolkit.offer_npu_smi()
    sim_probe.publish_facts()
    if report:
        atexit.register(_write_report, Path(report), simulation)


def run(program: Program) -> None:
    """Run the program as `__main__`. Its exceptions are passed on."""
    sys.argv[:] = [program.target, *program.arguments]
    if program.is_module:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        # Python was started with -m, so the first folder is the working directory. A script expects its own.
        sys.path[0] = str(Path(program.target).parent)
    runpy.run_path(program.target, run_name="__main__")


def main(arguments: Sequence[str]) -> int:
    """Set up the device and run the program. Returns the exit code if the program does not exit itself."""
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


def _provide_pyacl() -> None:
    """Make `acl`, with which Ray counts NPUs, importable in this process and its child processes."""
    if importlib.util.find_spec("acl") is None:
        folder = data_folder("devices/sim/start/pyacl")
        _add_to_pythonpath(folder)
        sys.path.append(str(folder))


def _add_to_pythonpath(folder: Path, *, first: bool = False) -> None:
    """Make the modules in a folder importable in child processes. first: before all others."""
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(folder) not in folders:
        folders.insert(0 if first else len(folders), str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def _write_report(path: Path, simulation: overlay.Simulation) -> None:
    """Append one JSON line: the faults with their hits, and the numbers of calls."""
    entry = {"pid": os.getpid(), "simulated": True, **simulation.faults.report()}
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
