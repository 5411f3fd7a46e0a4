"""What `npu-matrix lint` does besides judging: the versions it is given, what a change adds, and fixes.

Start with `lint_request.py`.
"""
