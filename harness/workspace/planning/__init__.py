"""Opens the plan of a checkout and says what is known of it: selected cells and checks, stored outcomes,
expected cost, the difference to an earlier revision. Start with `open_plan.py`, then `plan_history.py`.
"""
