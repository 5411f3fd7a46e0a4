"""Reads matrix.yaml, and computes the cells that its profiles select.

Start with `version_matrix.py`, the class that the rest of the project uses; `reading/load_matrix.py` creates
it from the file.
"""
