"""matrix.yaml: its form, its meaning, and the cells its profiles select.

Start with `version_matrix.py`, the class that everything else in the project uses; `reading/load_matrix.py`
builds it from the file.
"""
