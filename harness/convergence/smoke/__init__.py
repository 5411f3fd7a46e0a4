"""The checks `grpo` and `gspo`: short trainings of a tiny policy in one process with verl's functions.

Start with `smoke_check.py` (declares the checks) and `smoke_runs.py` (runs and judges, on the host), then
`training_loop.py` (sample, reward, advantage, loss, update), which `smoke_program.py` runs inside the cell.
`training_faults.py` has the faults that the check must detect.
"""
