"""What commands do, without parsing arguments and printing results.

A checkout is opened here: its settings, matrix, host, plan, ledger and history. Start with
`planning/open_plan.py`, which almost every command calls first. `planning` makes plans and says what is known
of them, `patches` finds patches and the trees they apply to, `execution` runs tasks on this machine, and
`results` reads what runs have stored.
"""
