"""npu-matrix: tests which versions of the Ascend NPU reinforcement-learning stack are compatible.

Start with `check.py`, the definition of a check. `cli/app.py` is the command line, and `workspace` does the
work of the commands. ARCHITECTURE.md shows how the packages depend on each other.
"""

__version__ = "0.2.0"
