"""How a cell process is started on the simulated device. Host side: standard library, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cell_program.built_environment import CellDevice
from harness.devices.sim.runtime_build.cann_toolkit import toolkit_environment
from harness.errors import InputError, Location

LAUNCHER = ("-m", "harness.devices.sim.start.sim_launch")

# Set to INTERPRET, Triton's kernels run in its interpreter (`triton_interpreter`).
TRITON, INTERPRET = "NPU_SIM_TRITON", "interpret"
DEFAULT_SOC = "Ascend910B3"
DEFAULT_CANN = "8.5.0"


def simulated_environment(
    runtime: Path, device: CellDevice, faults: Sequence[Mapping[str, Any]] = ()
) -> dict[str, str]:
    """Environment variables of a cell process on the simulated device.

    runtime: the folder `build_runtime` gave.
    faults: fault specifications (see `faultspec`), each a JSON object.
    InputError when the folder's path cannot stand in LD_LIBRARY_PATH.
    """
    if ":" in str(runtime) or ";" in str(runtime):
        raise InputError(
            "the simulated runtime's path holds a colon or semicolon",
            where=Location(runtime),
            why="LD_LIBRARY_PATH separates folders by these characters",
            fix="set NPU_MATRIX_CACHE to another folder",
        )
    environment = {
        "LD_LIBRARY_PATH": str(runtime),
        "NPU_SIM_SOC": device.soc or DEFAULT_SOC,
        "NPU_SIM_CANN": device.cann or DEFAULT_CANN,
        "NPU_SIM_COUNT": str(device.count or 1),
        # The autograd thread of a device has its own OpenMP setting: only the environment reaches all
        # threads, and results are bit-equal between runs only when they all use the same.
        "OMP_NUM_THREADS": "1",
        # Without its queue torch_npu submits in the calling thread: no hand-over per operator.
        "TASK_QUEUE_ENABLE": "0",
    }
    environment |= toolkit_environment(runtime, environment["NPU_SIM_CANN"])
    if device.memory_gb:
        environment["NPU_SIM_MEMORY_GB"] = str(device.memory_gb)
    if faults:
        environment["NPU_SIM_FAULTS"] = json.dumps([dict(fault) for fault in faults])
    return environment


def triton_environment(vllm_ascend: str) -> dict[str, str]:
    """What a release of vllm-ascend needs besides: since 0.19 it has no other code for slot mappings."""
    numbers = [int(part) for part in vllm_ascend.split(".")[:2] if part.isdecimal()]
    return {TRITON: INTERPRET} if numbers >= [0, 19] else {}
