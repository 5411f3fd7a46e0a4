"""What a training reports while it runs, as named series with one value per step.

Start with `series.py`, the series and their file; `verl_log.py` and `tensorboard.py` read what verl
writes, and `live_reader.py` follows a run that has not ended.
"""
