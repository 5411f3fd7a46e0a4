"""The check `loss`: evaluates verl's loss, advantage and log-probability functions on a test battery and
compares each result with intervals from a float64 reference. Start with `loss_check.py`; `cases` has the
battery and `formulas` the reference.
"""
