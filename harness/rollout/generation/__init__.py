"""The checks `generation`, `generation-experts` and `plumbing`: vLLM's engine generates, and a trainer uses
it.

Start with `generation_checks.py`, then `generation_program.py` and `plumbing_program.py` (run inside the
cell) and `generation_judge.py` (what their measurements mean).
"""
