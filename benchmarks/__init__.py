"""Measures what npu-matrix claims about itself: `python -m benchmarks` runs every module with `figures()`."""
