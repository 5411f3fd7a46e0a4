"""What the runs of verl's trainer mean: pure functions of the series that a run logged.

Start with `learning_test.py` (did the run learn); `reference_comparison.py` applies the decision rule
with a reference set, `probability_gap.py` and `weight_staleness.py` compare the rollout with the trainer.
"""
