"""Checks over cells become tasks with keys, so that equal work is done once and reused. Start with
`tasks.planner.make_plan`; `keys` computes the keys, `change` compares plans, `cost` estimates and orders
tasks, `covering`, `feasibility` and `bisection` choose cells.
"""
