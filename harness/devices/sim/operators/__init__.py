"""Runs the operators of the simulated device with CPU kernels on the same memory.

Start with `dispatch.py`, which runs one operator. `aten_kernels.py` installs CPU kernels for the operators of
torch. `custom_kernels.py` does this for the operators of torch_npu and `serving_kernels.py` for those of
serving engines, both with the CPU implementations in `harness.devices.sim.references`.
"""
