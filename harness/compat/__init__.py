"""Compatibility checks that need neither a device nor an installed environment.

`resolve` locks a cell's pins, `api` and `operators` compare packages with each other, `lint` examines the
settings of a job, and `table_drift` compares published compatibility tables. Start with `checks.py`.
"""
