"""What tasks cost in time and disk, in which order they run, and how cells are divided among CI jobs. Start
with `task_cost.CostModel`.
"""
