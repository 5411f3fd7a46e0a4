"""vLLM with vllm-ascend in the cell: imports, generation against a CPU reference, weight updates."""
