"""Reads bash scripts without executing anything: a syntax tree from shfmt, and an evaluator of it.

Start with `evaluator`, which walks a script and lists the commands it would run; `builtin_commands`,
`assignments` and `substitution` are the parts of bash that it follows.
"""
