"""Computes cells: which combinations of a product are feasible, and the pins of each cell.

Start with `product_expansion.py`, which decides which combinations are feasible, then `product_cells.py`.
"""
