"""Packages and where they come from: pip's settings, downloads, archives, requirements and locks.

Start with `index_settings.py`, which passes pip's settings on to uv; `archive.py` reads wheels and
sdists.
"""
