"""Finds the versions of consumers and providers whose uses are followed: `npu-matrix api survival`.

`followed_versions.py` reads clones and releases; `harness.compat.name_survival` follows the uses.
"""
