"""Data types that torch_npu's own code refuses, per release.

`refusal_table.py` reads the tables, which `harness.devices.sim.probing` measures. The kernels of the
simulated device refuse the same calls, with the wheel's message.
"""
