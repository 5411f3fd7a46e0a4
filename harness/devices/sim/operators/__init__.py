"""Runs the operators of the simulated device with CPU kernels on the same memory.

Start with `dispatch.py`, which runs one operator; `aten_kernels.py` installs the operators of torch,
`custom_kernels.py` those of torch_npu and `serving_kernels.py` those of serving engines, from the
references in `harness.devices.sim.references`.
"""
