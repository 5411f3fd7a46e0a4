"""Follows the Python of a verl program with a job's configuration, without importing or running any of it.

`interpreter` walks the syntax trees, `expressions` computes values, `libraries` says what functions of other
packages return, and `started_program` starts the program and tells which of verl's own checks fail. What is
not known stays unknown: a check is reported only if it fails whatever the unknown values are.
"""
