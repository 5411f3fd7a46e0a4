"""Rounding: what a floating-point implementation promises (`precision_contract.py`), error bounds that
follow from it, float64 runs with simulated rounding errors, and the measured constants of a device. Start
with `precision_contract.py`.
"""
