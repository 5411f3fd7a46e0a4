"""vLLM with vllm-ascend in the cell: imports, generation against a CPU reference, what a trainer does to it."""
