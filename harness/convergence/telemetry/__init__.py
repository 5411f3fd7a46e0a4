"""The telemetry of trainings, as named series with one value for each step.

Start with `series.py`, the series and their file. `verl_log.py` and `tensorboard.py` read the logs of verl,
and `live_reader.py` follows a running training.
"""
