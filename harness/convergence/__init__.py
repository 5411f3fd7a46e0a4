"""The convergence tier: short trainings of GRPO and GSPO, and the rule that judges their curves.

`checks.py` declares the checks. Start with `smoke/smoke_check.py`, training in one process with verl's
functions, then `trainer/trainer_check.py`, which runs verl's own trainer. `decision` has the rule that
both use, `telemetry` reads what a training logs, `inference` compares logits, `recipes` makes launch
commands.
"""
