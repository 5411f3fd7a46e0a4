"""Devices: what hardware and software a host has, leases of its NPU cards, and the simulated device.

Start with `host/host_inspection.py` for hosts, `cards/card_leases.py` for leases, and `sim/__init__.py` for
the simulated device.
"""
