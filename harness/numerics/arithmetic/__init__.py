"""Rounding errors: the precision contract of an implementation (`precision_contract.py`), error bounds that
follow from it, and float64 runs with simulated rounding errors. Start with `precision_contract.py`."""
