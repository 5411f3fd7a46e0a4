"""Apply patches to a tree in memory: place every hunk, and classify or merge patches that do not apply.

Start with `classify.py`, which gives the verdict on one patch; `stack_apply.py` does so for a whole
stack.
"""
