"""Find the function or class that encloses a line, to detect hunks that were applied in a wrong one."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

from harness.sources.python_syntax import parse_source

_DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
_NAMED = re.compile(rb"(?:async[ \t]+def|def|class)[ \t]+(\w+)")
_C_FUNCTION = re.compile(rb"^[A-Za-z_].*?\b(\w+)[ \t]*\(", re.MULTILINE)
#: Fields of a statement that hold statements.
_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")
_C_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".cxx")


def enclosing(data: bytes, line: int) -> tuple[str, ...]:
    """Names of the classes and functions that enclose `line` (from 1) of Python source, outermost first.

    Found in the syntax tree, or by indentation if the source does not parse.
    """
    blocks = _blocks(data)
    if blocks is None:
        return _by_indentation(data, line)
    return tuple(name for first, last, name in blocks if first <= line <= last)


@lru_cache(maxsize=32)
def _blocks(data: bytes) -> tuple[tuple[int, int, str], ...] | None:
    """First line (with decorators), last line and name of every definition, outer definitions first."""
    tree = parse_source(data)
    return tuple(_definition_spans(tree)) if tree else None


def enclosing_quickly(path: str, data: bytes, line: int) -> tuple[str, ...]:
    """Like `enclosing`, but fast, because it only reads indentation. Empty if the file is not Python."""
    return _by_indentation(data, line) if path.endswith((".py", ".pyi")) else ()


def same_place(was: tuple[str, ...], now: tuple[str, ...], base: bytes, data: bytes) -> bool:
    """Whether two chains of enclosing definitions name the same function, possibly under a new name.

    A definition counts as renamed if its old name is not in the new source and its new name is not in the old
    source. A function whose name occurs exactly once in both sources is the same function even if its class
    changed, because the hunk cannot be applied to any other function of this name.
    """
    before = [name for _indent, name in _definitions(base)[1]]
    after = [name for _indent, name in _definitions(data)[1]]
    if was and now and was[-1] == now[-1]:
        name = was[-1].encode()
        if before.count(name) == after.count(name) == 1:
            return True
    return len(was) == len(now) and all(
        old == new or (old.encode() not in after and new.encode() not in before)
        for old, new in zip(was, now, strict=True)
    )


def is_definition(text: bytes) -> bool:
    """Whether a line of Python source begins a function or class."""
    return _DEFINITION.match(text) is not None


def heading_problem(path: str, section: bytes, data: bytes, line: int) -> str:
    """Why a hunk placed at `line` (from 1) is not in the definition that its heading names, or "".

    `section` is the text after the second @@: the definition above the hunk when the patch was made.
    """
    if path.endswith((".py", ".pyi")):
        named = _NAMED.search(section)
        if not named:
            return ""
        above = _definitions_above(data, line)
    elif path.endswith(_C_SUFFIXES):
        named = _C_FUNCTION.search(section)
        if not named:
            return ""
        above = {found[1] for found in _C_FUNCTION.finditer(data[: _start(data, line)])}
    else:
        return ""
    if named[1] in above:
        return ""
    now = ".".join(_by_indentation(data, line)) or "the module"
    return f"the hunk was written for {named[1].decode('utf-8', 'replace')!r} and is applied in {now!r}"


def _start(data: bytes, line: int) -> int:
    """Byte offset of a line (from 1)."""
    return len(data) - len(data.split(b"\n", line - 1)[-1]) if line > 1 else 0


@lru_cache(maxsize=64)
def _definitions(data: bytes) -> tuple[list[int], list[tuple[int, bytes]]]:
    """Byte offsets of all definitions in Python source, and the indentation and name of each."""
    found = list(_DEFINITION.finditer(data))
    return [match.start() for match in found], [(len(match[1].expandtabs()), match[2]) for match in found]


def _above(data: bytes, start: int) -> list[tuple[int, bytes]]:
    """Definitions above a byte offset, nearest first."""
    starts, found = _definitions(data)
    return found[: bisect_left(starts, start)][::-1]


def _definitions_above(data: bytes, line: int) -> set[bytes]:
    """Definitions that git may have named in the heading: the nearest above `line` and the enclosing ones."""
    above = _above(data, _start(data, line))
    names = {name for _indent, name in above[:1]}
    limit = 1 << 30
    for indent, name in above:
        if indent < limit:
            names.add(name)
            limit = indent
        if not indent:
            break
    return names


def _by_indentation(data: bytes, line: int) -> tuple[str, ...]:
    start = _start(data, line)
    end = data.find(b"\n", start)
    text = data[start : end if end >= 0 else len(data)].expandtabs()
    limit = len(text) - len(text.lstrip()) if text.strip() else 1 << 30
    chain = []
    own = _DEFINITION.match(text)
    if own:
        chain.append(own[2])
    for indent, name in _above(data, start):
        if indent < limit:
            chain.append(name)
            limit = indent
        if not limit:
            break
    return tuple(name.decode("utf-8", "replace") for name in reversed(chain))


def _definition_spans(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    for part in _PARTS:
        for child in getattr(node, part, ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                yield first, child.end_lineno or first, child.name
            yield from _definition_spans(child)
