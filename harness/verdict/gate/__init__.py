"""Compares the verdicts of a change with those of its base: which checks are newly broken, fixed, flaky, or
unrelated to the change. Start with `gate.judge_gate`; `flake` decides what is flaky, `gate_report` has
the types of the report, and `gate_format` renders it.
"""
