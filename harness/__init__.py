"""npu-matrix: tests which versions of the Ascend NPU reinforcement-learning stack are compatible, with
evidence.

Start with `check.py`, what every test of a cell consists of, then `cli/app.py`, the command line, and
`workspace/__init__.py`, what the commands do. ARCHITECTURE.md shows how the packages depend on each other.
"""

__version__ = "0.2.0"
