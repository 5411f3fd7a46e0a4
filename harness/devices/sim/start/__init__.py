"""Starts programs on the simulated device, and tells a process whether its device is simulated.

Start with `sim_launch.py`, which runs a program; `overlay.py` installs the arithmetic into torch_npu,
`sim_probe.py` looks for the mark that the simulated runtime carries, and `sim_plugin.py` does the same in
processes of verl.
"""
