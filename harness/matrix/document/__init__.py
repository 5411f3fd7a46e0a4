"""The text of matrix.yaml: YAML with positions, and the schema of its entries.

Start with `matrix_schema.py`, the pydantic models of every entry; `yaml_positions.py` reads the file.
"""
