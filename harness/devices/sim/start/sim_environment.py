"""How the host starts a process on the simulated device: launcher and environment variables. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cell_program.built_environment import CellDevice
from harness.devices.sim.runtime_build.cann_toolkit import toolkit_environment
from harness.errors import InputError, Location
from harness.serialisation import JsonValue

REPORT_VARIABLE = "NPU_SIM_REPORT"
LAUNCHER = ("-m", "harness.devices.sim.start.sim_launch")

# With NPU_SIM_TRITON=interpret, Triton's kernels run in its interpreter (`triton_interpreter.py`).
TRITON, INTERPRET = "NPU_SIM_TRITON", "interpret"
SOC_VARIABLE = "NPU_SIM_SOC"
DEFAULT_SOC = "Ascend910B3"
DEFAULT_CANN = "8.5.0"


def simulated_environment(
    runtime: Path, device: CellDevice, faults: Sequence[Mapping[str, JsonValue]] = ()
) -> dict[str, str]:
    """Environment variables of a cell process on the simulated device.

    runtime: the folder that `build_runtime` returned. faults: JSON objects, see `faults/fault_spec.py`.
    InputError when LD_LIBRARY_PATH cannot contain the folder's path.
    """
    if ":" in str(runtime) or ";" in str(runtime):
        raise InputError(
            "the simulated runtime's path contains a colon or a semicolon",
            where=Location(runtime),
            why="LD_LIBRARY_PATH separates folders by these characters",
            fix="set NPU_MATRIX_CACHE to another folder",
        )
    environment = {
        "LD_LIBRARY_PATH": str(runtime),
        SOC_VARIABLE: device.soc or DEFAULT_SOC,
        "NPU_SIM_CANN": device.cann or DEFAULT_CANN,
        "NPU_SIM_COUNT": str(device.count or 1),
        # Results are bit-equal between runs only if all threads have the same OpenMP setting. The autograd
        # thread of a device takes it from the environment.
        "OMP_NUM_THREADS": "1",
        # Without its task queue, torch_npu submits in the calling thread, which is faster here.
        "TASK_QUEUE_ENABLE": "0",
    }
    environment |= toolkit_environment(runtime, environment["NPU_SIM_CANN"])
    if device.memory_gb:
        environment["NPU_SIM_MEMORY_GB"] = str(device.memory_gb)
    if faults:
        environment["NPU_SIM_FAULTS"] = json.dumps([dict(fault) for fault in faults])
    return environment


def triton_environment(vllm_ascend: str) -> dict[str, str]:
    """Variables that a vllm-ascend version needs: since 0.19 it computes slot mappings only with Triton."""
    numbers = [int(part) for part in vllm_ascend.split(".")[:2] if part.isdecimal()]
    return {TRITON: INTERPRET} if numbers >= [0, 19] else {}
