"""Going through syntax trees, which is most of what reading a package costs."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

# Fields that hold no node, or none that anybody here asks about.
PLAIN_FIELDS = frozenset({"ctx", "op", "ops", "type_comment", "kind"})


def parse(source: bytes) -> ast.Module | None:
    """The syntax tree, or None for what this Python cannot read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in PLAIN_FIELDS)


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, without operators and contexts.

    Several times as fast as `ast.iter_child_nodes`, and called millions of times.
    """
    found: list[ast.AST] = []
    kind: Any = type(node)
    for name in _fields(kind):
        value = getattr(node, name, None)
        if type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, in no particular order."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)


# Kinds with nothing below; `ast.NodeVisitor` has a slow method of its own for the second.
LEAVES = frozenset({ast.Name, ast.Constant})


@cache
def _handler(visitor: Any, kind: Any) -> Callable[[Any, ast.AST], None] | None:
    return None if kind in LEAVES else getattr(visitor, f"visit_{kind.__name__}", None)


class SyntaxVisitor(ast.NodeVisitor):
    """`ast.NodeVisitor`, faster: `visit_KIND` gets the nodes of its kind, the others are gone through."""

    def visit(self, node: ast.AST) -> None:
        """Hand a node to its method, or go through what is below it."""
        kind: Any = type(node)
        own: Any = type(self)
        handler = _handler(own, kind)
        if handler:
            handler(self, node)
        elif kind not in LEAVES:
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit what is directly below a node, in the order of the text."""
        for child in children(node):
            self.visit(child)
