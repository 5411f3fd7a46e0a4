"""Builds the simulated CANN runtime, a C library, for the torch_npu that a cell has installed.

Start with `runtime_library.py`; `wheel_symbols.py` finds what torch_npu expects from CANN, `runtime/sim.h`
declares the C sources, and `compiler.py` finds a C compiler.
"""
