"""torch.distributed on the simulated device: the backend `hccl` on top of gloo.

Start with `hccl.py`; `reductions.py` computes the reductions that gloo lacks before torch 2.9.
"""
