"""verl's own trainer, `verl.trainer.main_ppo`, on a tiny model and task, through verl's extension points.

Start with `trainer_check.py` (runs and judges, on the host), then `trainer_program.py`, which runs inside
the cell. verl is not edited: `verl_extensions` has what its processes load, `supervision` ends runs that
hang, and `judging` says what the curves mean. `one_step_check.py`, `recipe_twin_check.py` and
`vllm_check.py` are its variants.
"""
