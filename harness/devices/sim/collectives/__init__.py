"""Collectives of the simulated device.

torch_npu's own ProcessGroupHCCL runs them on the HCCL of the simulated runtime, which is
`runtime_build/runtime/hccl.c`. `collective_faults.py` lets faults and call counts reach them;
`matmul_collectives.py`, `grouped_matmul_collectives.py` and `expert_collectives.py` have the kernels that
compute and exchange in one, by `exchange.py`.
"""
