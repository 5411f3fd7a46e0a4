"""Runs verl's trainer, detects that it hangs, and kills all its processes. Linux only.

Start with `supervised_run.py`. `process_stacks.py` reads the stacks of a hung run, and `zygote.py` lets Ray's
workers start faster.
"""
