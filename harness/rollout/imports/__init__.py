"""The check `vllm-imports`: imports every module of vllm-ascend and verl, each in a process of its own.

Start with `import_checks.py`, then `import_program.py` (runs inside the cell); `import_breaks.py` groups
the modules that cannot be imported by their common cause.
"""
