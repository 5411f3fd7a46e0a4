"""Edits matrix.yaml and preserves every other byte of the file.

Start with `yaml_edit.py`; `retire_migration.py` finishes a migration.
"""
