"""The check `lint` and the command `npu-matrix lint`: settings of a training job that fail or mislead.

`launch_script` and `job_settings` read a job, `ruleset` loads the rules in `rules/*.yaml`,
`rule_expression` evaluates their conditions, and `lint_check` applies them. `lint_scripts` does so for
files and folders. To add a rule, start with `rules/loss.yaml`.
"""
