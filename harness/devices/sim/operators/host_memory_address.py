"""The addresses of device memory. Needs no torch."""

from __future__ import annotations

HOST_ADDRESS = ~(1 << 52)
"""Removes SIM_DEVICE_BIT of the runtime's sim.h from an address, which is then the host's."""
