"""Which function or class a line stands in, before and after: the test for hunks that landed elsewhere."""

from __future__ import annotations

import ast
import re
import warnings

_DEFINITION = re.compile(rb"^([ \t]*)(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
_NAMED = re.compile(rb"(?:async[ \t]+def|def|class)[ \t]+(\w+)")
_C_FUNCTION = re.compile(rb"^[A-Za-z_].*?\b(\w+)[ \t]*\(", re.MULTILINE)
_C_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".cxx")


def enclosing(data: bytes, line: int) -> tuple[str, ...]:
    """Names of the classes and functions around `line` (from 1) of Python source, outermost first.

    By the syntax tree where the source parses, else by indentation.
    """
    by_indent = _by_indentation(data, line)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return by_indent
    chain: list[str] = []
    _descend(tree, line, chain)
    return tuple(chain)


def enclosing_quickly(path: str, data: bytes, line: int) -> tuple[str, ...]:
    """As `enclosing`, by indentation alone: right for usual source, in microseconds. Empty if not Python."""
    return _by_indentation(data, line) if path.endswith((".py", ".pyi")) else ()


def heading_problem(path: str, section: bytes, data: bytes, line: int) -> str:
    """Why a hunk placed at `line` (from 1) does not stand where its heading says, or "".

    `section` is the text after the second @@: the definition git saw above the hunk when the patch was made.
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
    return f"the hunk was written for {named[1].decode('utf-8', 'replace')!r} and lands in {now!r}"


def _start(data: bytes, line: int) -> int:
    """Byte offset of a line (from 1)."""
    at = 0
    for _ in range(line - 1):
        following = data.find(b"\n", at)
        if following < 0:
            return len(data)
        at = following + 1
    return at


def _definitions_above(data: bytes, line: int) -> set[bytes]:
    """Definitions git could have named above `line`: the nearest, the nearest unindented, the enclosing."""
    found = [
        (len(match[1].expandtabs()), match[2]) for match in _DEFINITION.finditer(data[: _start(data, line)])
    ]
    names = {name for _indent, name in found[-1:]}
    names.update(name for indent, name in [entry for entry in found if not entry[0]][-1:] if not indent)
    limit = 1 << 30
    for indent, name in reversed(found):
        if indent < limit:
            names.add(name)
            limit = indent
    return names


def _by_indentation(data: bytes, line: int) -> tuple[str, ...]:
    start = _start(data, line)
    end = data.find(b"\n", start)
    text = data[start : end if end >= 0 else len(data)]
    limit = len(text.expandtabs()) - len(text.expandtabs().lstrip()) if text.strip() else 1 << 30
    chain = []
    own = _DEFINITION.match(text)
    if own:
        chain.append(own[2].decode("utf-8", "replace"))
    for match in reversed(list(_DEFINITION.finditer(data[:start]))):
        indent = len(match[1].expandtabs())
        if indent < limit:
            chain.append(match[2].decode("utf-8", "replace"))
            limit = indent
    return tuple(reversed(chain))


def _descend(node: ast.AST, line: int, chain: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        first = getattr(child, "lineno", None)
        if first is None:
            _descend(child, line, chain)
            continue
        decorators = getattr(child, "decorator_list", [])
        first = min([first, *(decorator.lineno for decorator in decorators)])
        if first <= line <= (getattr(child, "end_lineno", None) or first):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                chain.append(child.name)
            _descend(child, line, chain)
            return
