"""vLLM with vllm-ascend in the cell: imports, generation against a CPU reference, and what a trainer does to it."""
