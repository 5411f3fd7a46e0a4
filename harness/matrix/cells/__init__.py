"""From definitions to cells: the product of axis values, its constraints, and the pins of each cell.

Start with `product_expansion.py`, which decides what combinations are feasible, then `product_cells.py`.
"""
