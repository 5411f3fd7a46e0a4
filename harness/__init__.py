"""npu-matrix: which versions of the Ascend NPU reinforcement-learning stack go together, with evidence."""

__version__ = "0.1.0"
