"""Recognise a module's `__getattr__` that computes only names which the module has as strings."""

from __future__ import annotations

import ast
import enum
from collections.abc import Sequence

from harness.compat.surface.syntax_walk import walk


class _Ends(enum.Enum):
    """How a block ends for a name that no test of the function knows."""

    RAISES = enum.auto()
    FALLS_THROUGH = enum.auto()
    RETURNS = enum.auto()


def computes_known_names(functions: Sequence[ast.stmt], statements: Sequence[ast.stmt]) -> bool:
    """Whether all definitions of `__getattr__` raise an error for a name that is no string in the module.

    statements: those of the module, which assign the tables of names.
    """
    tables = {name for node in statements for name in _table(node)}
    return all(_raises_for_others(function, tables) for function in functions)


def _table(node: ast.stmt) -> list[str]:
    """The name that a statement assigns a dictionary or list of strings to."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _are_strings(value):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _are_strings(value):
            return [name]
    return []


def _are_strings(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=items) | ast.Set(elts=items) | ast.List(elts=items) | ast.Tuple(elts=items):
            return all(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in items)
    return False


def _raises_for_others(function: ast.stmt, tables: set[str]) -> bool:
    match function:
        case ast.FunctionDef(args=ast.arguments(args=[ast.arg(arg=name)]), body=body):
            return _end(body, name, tables) is _Ends.RAISES
    return False


def _end(body: Sequence[ast.stmt], name: str, tables: set[str]) -> _Ends:
    for node in body:
        match node:
            case ast.Raise():
                return _Ends.RAISES
            case ast.If(test=test, body=then, orelse=other):
                ends = {
                    _Ends.RAISES if _is_known(test, name, tables) else _end(then, name, tables),
                    _end(other, name, tables),
                }
                if _Ends.RETURNS in ends:
                    return _Ends.RETURNS
                if ends == {_Ends.RAISES} or (
                    _is_unknown(test, name, tables) and _end(then, name, tables) is _Ends.RAISES
                ):
                    return _Ends.RAISES
            case _ if any(isinstance(inner, ast.Return) for inner in walk(node)):
                return _Ends.RETURNS
    return _Ends.FALLS_THROUGH


def _is_known(test: ast.expr, name: str, tables: set[str]) -> bool:
    """Whether a test is true only for names that are strings in the module."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(_is_known(value, name, tables) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return all(_is_known(value, name, tables) for value in values)
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Eq()], comparators=[ast.Constant(value=str())]):
            return left == name
        case ast.Compare(left=ast.Name(id=left), ops=[ast.In()], comparators=[table]):
            return left == name and _is_table(table, tables)
    return False


def _is_unknown(test: ast.expr, name: str, tables: set[str]) -> bool:
    """Whether a test is true for every name that is no string in the module."""
    match test:
        case ast.Compare(left=ast.Name(id=left), ops=[ast.NotIn()], comparators=[table]):
            return left == name and _is_table(table, tables)
    return False


def _is_table(table: ast.expr, tables: set[str]) -> bool:
    return _are_strings(table) or (isinstance(table, ast.Name) and table.id in tables)
