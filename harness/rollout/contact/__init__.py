"""The checks `device-sample` and `collectives`: the first questions to a device that nobody has measured yet.

Start with `contact_checks.py`. `npu-matrix first-contact` runs them on real silicon.
"""
