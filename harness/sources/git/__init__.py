"""Git repositories read from their object store, without a checkout and without running hooks.

Start with `git_repository.py`; `mirrors.py` finds the local clone that has a commit.
"""
