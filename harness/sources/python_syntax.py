"""Parsing Python sources of other projects."""

from __future__ import annotations

import ast
import warnings


def parse_source(source: bytes) -> ast.Module | None:
    """The syntax tree of Python source; None if this interpreter cannot parse it."""
    try:
        return _parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def syntax_error(source: bytes) -> SyntaxError | None:
    """Why this interpreter cannot parse Python source, None if it can."""
    try:
        _parse(source)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
