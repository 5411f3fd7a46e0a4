"""Runs verl's trainer, notices when it hangs, and ends all its processes. Linux only.

Start with `supervised_run.py`; `process_stacks.py` records where the processes of a hanging run stand,
`zygote.py` makes Ray's workers start faster.
"""
