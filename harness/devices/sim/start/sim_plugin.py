"""Importing this module installs the simulated device in the process.

It is for programs that start their own worker processes. With
`VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin`, every process of verl (also Ray workers)
imports it before verl looks at the device. vLLM's engine and worker processes import it as a platform plugin,
which the folder `vllm_platform` declares; `sim_launch.py` adds that folder to PYTHONPATH. In a process
without a visible device, for example a Ray worker without NPUs, nothing is installed.
"""

from __future__ import annotations

from harness.devices.sim.start import sim_launch, sim_probe
from harness.devices.sim.start.overlay import installed

if sim_probe.device_facts().count and installed() is None:
    sim_launch.set_up()


def no_platform() -> None:
    """vLLM calls this to learn the platform class. It returns None: this plugin provides no platform."""
