"""What torch_npu's own operators compute, written for CPU tensors from their documentation and schemas.

Forward and backward are plain functions named like the operator; torch_npu's autograd formulas connect them.
tests/npu/test_sim_custom_ops.py checks each against autograd in float64. Start with `activation.py`;
`precision.py` has what all of them use.
"""
