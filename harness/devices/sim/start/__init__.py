"""Starts programs on the simulated device, and detects whether the device of a process is simulated.

Start with `sim_launch.py`, which installs the device and runs a program. `sim_plugin.py` installs it in the
processes of verl and vLLM, `overlay.py` replaces the arithmetic of torch_npu, and `sim_probe.py` detects the
simulated runtime.
"""
