"""Applying patches to a tree in memory: place every hunk, classify the patches that do not apply, or
merge them.

Start with `classify.py`, which gives the verdict on one patch; `stack_apply.py` does so for a whole
stack.
"""
