"""Definitions in Python source: which function or class encloses a line, and what a module defines.

Start with `source_outline.py`. Nothing here imports or runs the source.
"""
