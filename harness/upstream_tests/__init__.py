"""Runs the test suites of upstreams inside a cell, on its device. Start with `suite_check`.

`in_cell` runs inside the cell and imports nothing of the host side.
"""
