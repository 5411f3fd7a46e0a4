"""What `npu-matrix lint` does besides judging: the versions it is given, what a change adds, and fixes.

Start with `given_versions.py`.
"""
