"""Reads matrix.yaml into a `Matrix` and reports every problem with its position.

Start with `load_matrix.py`; `resolve_names.py` resolves names and versions.
"""
