"""The work of the commands, without parsing arguments and printing results.

Start with `planning/open_plan.py`, which almost every command calls first: it makes the plan of a checkout
from its settings, its matrix and this host. `planning` makes plans and looks up their stored outcomes,
`patches` finds patches and the trees they apply to, `execution` runs tasks on this machine, and `results`
reads what runs have stored.
"""
