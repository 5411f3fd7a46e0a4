"""Source files and packages of upstreams: trees of files, git repositories, archives and package indexes.

Start with `tree.py`, the protocol that all trees of files implement. `git` reads repositories, `packages`
reads wheels, sdists and pip's settings, `redact.py` removes credentials from URLs, and `secrets` masks the
credentials of this machine in everything that is stored.
"""
