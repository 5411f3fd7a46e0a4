"""Finds and removes what killed runs left and what no outcome needs any more (`npu-matrix cleanup`).

Start with `cleanup_candidates.py`; `cache_retention.py` decides about the stores of the cache and state
folders.
"""
