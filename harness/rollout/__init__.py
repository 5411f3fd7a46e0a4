"""vLLM with vllm-ascend in a cell: imports, generation compared with the CPU, sleep mode and weight sync.

`checks.py` collects the checks. Start with `generation/generation_checks.py`; `imports` imports every
module of the packages, and `operators` tests single operators that a serving engine calls.
"""
