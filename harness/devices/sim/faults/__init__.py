"""Fault injection on the simulated device: breaks one operator on purpose, to prove that a check notices it.

Start with `fault_spec.py`, the text form of a fault; `fault_kinds.py` has what each kind does to an
operator's call, and `fault_injection.py` installs the faults.
"""
