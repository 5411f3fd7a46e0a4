"""References: CPU implementations of torch_npu's own operators, from their documentation and schemas.

Forward and backward are functions with the name of the operator; torch_npu's autograd formulas connect them.
tests/npu/test_sim_custom_ops.py compares each with autograd in float64. Start with `activation.py`;
`precision.py` has the functions that all modules use.
"""
