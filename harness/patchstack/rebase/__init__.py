"""Rebasing patches to a new upstream commit, with a rebase kit for every patch that conflicts.

Start with `rebase_stack.py`; `rebase_kit.py` writes the folder in which a person resolves the conflicts.
"""
