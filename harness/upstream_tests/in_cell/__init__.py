"""Runs test files of an upstream inside a cell, each in a process of its own. Start with `run_files`.

Imports nothing of the host side. `record_plugin` is the pytest plugin that writes down each test as it ends.
"""
