"""The check `vllm-imports`: imports the modules of vllm-ascend and verl, each in a separate process.

Start with `import_checks.py`, then `import_program.py` (runs inside the cell); `import_breaks.py` groups
the modules that cannot be imported by their common cause.
"""
