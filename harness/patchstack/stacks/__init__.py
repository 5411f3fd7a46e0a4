"""Stacks of patches in folders: load, check, select by version, summarise, import and export them.

Start with `patch_stack.py`, the format of this project's own stacks; `patch_selection.py` picks the
patches and `upstream_tree.py` finds the tree that a command works on.
"""
