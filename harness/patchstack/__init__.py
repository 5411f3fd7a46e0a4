"""Patch stacks: parse patches, apply a stack to an upstream tree, and maintain it over upstream's
versions.

Start with `patch_check.py`, which applies the patches selected for a cell. The sub-packages, each importing
only those named before it: `format` (patch files), `python_source` (definitions in Python code), `apply`
(one patch or a stack on a tree), `stacks` (stacks in folders), `history` (patches over a range of
upstream commits) and `rebase` (moving patches to a new commit). `runtime` checks monkey patches.
"""
