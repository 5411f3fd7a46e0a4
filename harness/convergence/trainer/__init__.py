"""verl's own trainer, `verl.trainer.main_ppo`, on a tiny model and task, through verl's extension points.

Runs inside a cell; verl is not edited. `run` is the program; what the trainer loads is `plugin` (external
module), `rollout` (verl 0.6, sync) or `server` (verl 0.7 and later, server mode) and `reward`.
"""
