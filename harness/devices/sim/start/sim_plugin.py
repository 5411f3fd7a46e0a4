"""Importing this module puts the simulated device into the process.

For programs that start their own workers. `VERL_USE_EXTERNAL_MODULES=harness.devices.sim.start.sim_plugin`
does it in
every process of verl (Ray workers too), before verl looks at the device. vLLM's engine and worker processes
import it as a platform plugin: the folder `vllm_platform`, which `launch` puts on PYTHONPATH, declares one. A
process that sees no device, because Ray gave it none, is left alone.
"""

from __future__ import annotations

from harness.devices.sim.start import sim_launch, sim_probe
from harness.devices.sim.start.overlay import installed

if sim_probe.device_facts()["count"] and installed() is None:
    sim_launch.set_up()


def no_platform() -> None:
    """Called by vLLM, which looks for its platform in every process: this plugin is none (vllm.plugins)."""
