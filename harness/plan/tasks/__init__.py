"""A plan: one entry per check of a cell, one task per distinct key, and what the host can run. Start with
`planner.make_plan` and the classes in `task`; `check_registry` collects all checks.
"""
