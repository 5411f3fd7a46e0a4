"""Patch files: unified diffs parsed and written byte for byte, and the header that explains each patch.

Start with `diff.py`, the classes of a parsed patch; `diff_parser.py` reads them and `diff_writer.py`
writes them.
"""
