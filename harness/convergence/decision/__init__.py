"""The decision rule: whether a training run learns as the recorded runs of a reference set do.

Start with `decide.py` (gates, one screening run, a confirmation); `decision_rule.py` has its settings and
error rates, `bands.py` the prediction bands, `reference_set.py` the recorded runs.
"""
