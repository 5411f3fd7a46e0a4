"""The check `gpt-oss`: compares the logits of a tiny gpt-oss model on the cell's device and on the CPU.

Start with `inference_check.py` (runs and judges, on the host), then `inference_program.py` (runs inside
the cell).
"""
