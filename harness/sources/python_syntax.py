"""Parsing Python sources of other projects."""

from __future__ import annotations

import ast
import warnings


def parse_source(source: bytes) -> ast.Module | None:
    """The syntax tree of Python source; None if this interpreter cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
