"""The check `loss`: verl's loss, advantage and log-probability functions on a battery of cases, each judged
against intervals from a float64 reference. Start with `loss_check.py`; `cases` has the battery, `formulas`
the reference, `metamorphic` the relations that need no reference.
"""
