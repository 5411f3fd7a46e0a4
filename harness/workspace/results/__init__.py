"""Reads the results of runs: a run with its verdicts, the inputs of the report and of the gate, the lock of a
cell, and what cleanup may remove. Start with `stored_run.py`.
"""
