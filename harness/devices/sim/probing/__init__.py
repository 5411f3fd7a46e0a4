"""Measures what the wheel of torch_npu refuses, for the tables in `harness.devices.sim.refusals`.

Start with `make_refusals.py`. It builds a runtime whose operators do nothing and runs `refusal_probe.py`.
"""
