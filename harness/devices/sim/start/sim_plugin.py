"""Importing this module installs the simulated device in the process.

It is for programs that start their own worker processes. With
`VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin`, every process of verl (also Ray workers)
imports it before verl looks at the device. vLLM's engine and worker processes import it as a platform plugin,
which the folder `vllm_platform` declares; `sim_launch.py` adds that folder to PYTHONPATH. Other processes get
it when they import torch_npu (`after_torch_npu.py`).
"""

from __future__ import annotations

import os

from harness.devices.sim.faults.fault_spec import VARIABLE, parse_faults
from harness.devices.sim.start import sim_launch, sim_probe
from harness.devices.sim.start.overlay import installed

if installed() is None and sim_probe.is_simulated():
    sim_launch.install(parse_faults(os.environ.get(VARIABLE, "")))


def no_platform() -> None:
    """vLLM calls this to learn the platform class. It returns None: this plugin provides no platform."""
