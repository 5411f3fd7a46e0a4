"""The text of matrix.yaml: YAML with positions, and the form that its entries must have.

Start with `matrix_schema.py`, the pydantic models of every entry; `yaml_positions.py` reads the file.
"""
