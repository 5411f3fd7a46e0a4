"""Source files and packages of upstreams: trees of files, git repositories, archives and package indexes.

Start with `tree.py`, the protocol that all trees of files implement. `git` reads repositories, `packages`
reads wheels, sdists and pip's settings, and `redact.py` removes credentials from text.
"""
