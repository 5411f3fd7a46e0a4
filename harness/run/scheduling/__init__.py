"""Runs a plan: which task may start next, what is reused from the ledger, and what observers see. Start with
`scheduler.run_plan`; `schedule` holds the decisions and has no effects, `run_result` is what a run returns.
"""
