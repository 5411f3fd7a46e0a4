"""Finds the patches a command works on and the source tree they apply to, and caches what the report shows
of them. Start with `patch_target.py`.
"""
