"""The checks `generation`, `generation-experts` and `plumbing` of vLLM's engine, alone and with a trainer.

Start with `generation_checks.py`, then `generation_program.py` and `plumbing_program.py` (run inside the
cell) and `generation_judge.py` (judges their measurements).
"""
