"""Fault injection: breaks operators of the simulated device on purpose, to prove that a check notices it.

Start with `fault_spec.py`, which parses faults. `fault_kinds.py` implements what each kind of fault does to a
call of an operator, and `fault_injection.py` activates faults.
"""
