"""The check `update`: one whole update through verl's trainer and worker functions, from rewards and tokens
to updated parameters, compared with a float64 reference in numpy. Start with `update_check.py`;
`update_cases.py` has the cases, `verl_update.py` runs them in the cell, `update_intervals.py` has the
reference and `update_compare.py` compares.
"""
