"""The definitions of matrix.yaml as checked values: versions, constraints, cells, stacks, migrations.

Start with `definitions.py`; `versions.py` and `constraints.py` hold the rules for comparing versions.
"""
