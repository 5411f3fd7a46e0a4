"""Reads what runs have stored: a stored run with its verdicts, the inputs of the report and of the gate,
the lock of a cell, what cleanup may remove. Start with `stored_run.py`.
"""
