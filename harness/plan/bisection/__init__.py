"""Finds the change that made a check fail between a good and a bad cell, also when the check is flaky. Start
with `search.Bisection`; `cells_between` makes the cells to probe.
"""
