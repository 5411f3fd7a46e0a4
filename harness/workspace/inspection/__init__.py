"""Judges versions that somebody has, without a stack of the matrix: `npu-matrix inspect`.

`inspect_source.py` is the whole of it; `stack_checks.py` runs the static checks, and `smallest_change.py`
searches for versions to move.
"""
