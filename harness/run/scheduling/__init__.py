"""Runs a plan: reuses outcomes of the ledger, starts the other tasks, and notifies observers. Start with
`scheduler.run_plan`; `schedule` decides which task may start and has no effects, `run_result` is the return
value.
"""
