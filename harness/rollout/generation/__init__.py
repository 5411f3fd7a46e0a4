"""The checks of vLLM's engine: what it generates, also with MoE models and in graphs, and its weight sync.

Start with `generation_checks.py`, then `generation_program.py` and `plumbing_program.py` (run inside the
cell) and `generation_judge.py` (judges their measurements).
"""
