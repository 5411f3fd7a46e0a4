"""Builds the simulated CANN runtime, a C library, for the torch_npu that a cell has installed.

Start with `runtime_library.py`, which builds the library once for each installed torch_npu.
`wheel_symbols.py` finds the libraries and symbols that torch_npu needs from CANN. `runtime/sim.h` describes
the C sources.
"""
