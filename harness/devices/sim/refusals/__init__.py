"""The simulated device refuses what torch_npu's own code refuses, with its exceptions.

Before a kernel computes a call of a new kind (other shapes, types, layouts, numbers of heads, ...),
`wheel_checks.py` sends a description of it (`call_form.py`) to a process in which torch_npu has its own
kernels and the operators of CANN do nothing (`check_server.py`). So the checks are those of the installed
release. `permissive_calls.py` stores which calls could not be verified.
"""
