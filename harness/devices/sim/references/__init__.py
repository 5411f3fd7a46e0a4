"""What torch_npu's own operators compute, written for CPU tensors from their documentation and schemas.

Forward and backward are plain functions named like the operator; torch_npu's autograd formulas tie them
together. Each is checked against autograd in float64 by tests/npu/test_sim_custom_ops.py.
"""
