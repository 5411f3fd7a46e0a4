"""The entries of matrix.yaml as typed values: versions, constraints, cells, stacks, migrations.

Start with `definitions.py`; `versions.py` and `constraints.py` contain the rules for comparing versions.
"""
