"""Fast traversal of syntax trees, which takes most of the time of an analysis."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

# Fields without nodes, or with nodes that no analysis uses.
PLAIN_FIELDS = frozenset({"ctx", "op", "ops", "type_comment", "kind"})


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in PLAIN_FIELDS)


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes, without operators and contexts.

    Called millions of times, and several times as fast as `ast.iter_child_nodes`.
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
    """A node and all nodes below it, in no particular order."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)


# Node types without children; `ast.NodeVisitor` has a slow method for `Constant`.
LEAVES = frozenset({ast.Name, ast.Constant})


@cache
def _handler(visitor: Any, kind: Any) -> Callable[[Any, ast.AST], None] | None:
    return None if kind in LEAVES else getattr(visitor, f"visit_{kind.__name__}", None)


class SyntaxVisitor(ast.NodeVisitor):
    """A faster `ast.NodeVisitor`, with the same `visit_KIND` methods."""

    def visit(self, node: ast.AST) -> None:
        """Call the method for the node's type, or visit its children."""
        kind: Any = type(node)
        own: Any = type(self)
        handler = _handler(own, kind)
        if handler:
            handler(self, node)
        elif kind not in LEAVES:
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit the children of a node in the order of the source."""
        for child in children(node):
            self.visit(child)
