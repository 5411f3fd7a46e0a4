"""The lock of a cell: the exact version and digest of every package, patch and commit it consists of.

Start with `cell_lock.py`. The other modules add to a lock: the tree ids of commits, the requirements of
packages built from source, and the packages of each image layer.
"""
