"""Importing this module puts the simulated device into the process.

For programs that start their own workers: `VERL_USE_EXTERNAL_MODULES=harness.devices.sim.plugin` does it in
every process of verl (Ray workers too), before verl looks at the device. A process that sees no device,
because Ray gave it none, is left alone.
"""

from __future__ import annotations

from harness.devices.sim import launch, probe

if probe.device_facts()["count"]:
    launch.set_up()
