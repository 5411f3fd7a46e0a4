"""verl's own trainer, `verl.trainer.main_ppo`, on a tiny model and task, through verl's extension points.

Start with `trainer_check.py` (declares the checks), then `trainer_runs.py` (runs and judges, on the host) and
`trainer_program.py` (runs inside the cell). verl is not edited: `verl_extensions` has the code that
verl's processes load, `supervision` kills runs that hang, and `judging` says what the curves mean.
`one_step_check.py`, `recipe_twin_check.py` and `vllm_check.py` declare variants.
"""
