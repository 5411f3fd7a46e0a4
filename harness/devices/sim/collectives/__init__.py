"""torch.distributed on the simulated device: a backend `hccl` that uses gloo.

Start with `hccl.py`; `reductions.py` computes the reductions that gloo lacks before torch 2.9.
"""
