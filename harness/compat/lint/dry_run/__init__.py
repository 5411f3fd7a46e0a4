"""Follows the Python of a verl program with a job's configuration, without importing or running any of it.

`started_program` starts the program and tells which of verl's own checks fail. `program_walk` joins the parts
that follow it: `statements`, `expressions`, `operations`, `access` and `calls` walk the syntax trees,
`program_modules` reads them, `branches` and `journal` follow alternatives, and `python_builtins` and
`libraries` say what functions return that are not verl's. What is not known stays unknown: a check is
reported only if it fails whatever the unknown values are.
"""
