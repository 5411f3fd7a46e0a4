"""What the runs of verl's trainer mean: pure functions of the series that a run logged.

Start with `learned.py` (did the run learn); `banded.py` applies the decision rule with a reference set,
`probability_gap.py` and `weight_lag.py` compare the rollout with the trainer.
"""
