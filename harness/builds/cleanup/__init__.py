"""What `npu-matrix cleanup` removes: what dead runs left, and what no outcome needs any more.

Start with `cleanup_candidates.py`, which finds, judges and removes; `cache_retention.py` does the same for
the stores of the cache and state folders.
"""
