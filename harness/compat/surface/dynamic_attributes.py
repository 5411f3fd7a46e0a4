"""Whether objects of a class can have attributes that its source code does not name."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator

from harness.compat.surface.syntax_walk import children, walk

GETATTR_METHODS = ("__getattr__", "__getattribute__")
# Methods that copy the attributes of another object of the class.
COPY_METHODS = ("__setstate__", "__getstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__")
# Functions that read a dictionary without changing it.
READERS = frozenset(
    {"bool", "dict", "frozenset", "iter", "len", "list", "repr", "set", "sorted", "str", "tuple"}
)
READING_METHODS = frozenset({"copy", "get", "items", "keys", "values"})


class Openness(enum.IntEnum):
    """CLOSED: the source names all attributes. DATA: others may be data. ANY: others may be methods."""

    CLOSED = 0
    DATA = 1
    ANY = 2


def openness(node: ast.ClassDef) -> Openness:
    """How open the objects of a class are, from its own source code."""
    return max(_of_body(node), default=Openness.CLOSED)


def _of_body(node: ast.ClassDef) -> Iterator[Openness]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if statement.name in GETATTR_METHODS:
                yield Openness.ANY
            elif statement.name not in COPY_METHODS:
                yield from _of_method(statement)
        elif any(map(_may_write, walk(statement))):
            yield Openness.ANY


def _may_write(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="__dict__") | ast.FunctionDef(name="__getattr__" | "__getattribute__"):
            return True
        case ast.Call(func=ast.Name(id="setattr"), args=[_, name, *_]):
            return not isinstance(name, ast.Constant)
    return False


def _of_method(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Openness]:
    arguments = method.args
    places = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    # Parameters other than `self` are other objects.
    foreign = {*places[1:], *(argument.arg for argument in arguments.kwonlyargs)}
    for parent in walk(method):
        match parent:
            case ast.FunctionDef(name="__getattr__" | "__getattribute__"):
                yield Openness.ANY
            case ast.Call(func=ast.Name(id="setattr"), args=[holder, name, *rest]):
                if not isinstance(name, ast.Constant) and _may_be_own(holder, foreign):
                    yield _of_setting(holder, rest)
        for child in children(parent):
            if not isinstance(child, ast.Attribute) or child.attr != "__dict__":
                continue
            if _may_be_own(child.value, foreign) and not _only_reads(parent, child):
                yield Openness.ANY if _is_class(child.value) else Openness.DATA


def _of_setting(holder: ast.expr, values: list[ast.expr]) -> Openness:
    """DATA when the value is a plain name, constant or subscript; other values may be functions."""
    plain = len(values) == 1 and isinstance(values[0], ast.Name | ast.Constant | ast.Subscript)
    return Openness.DATA if plain and not _is_class(holder) else Openness.ANY


def _is_class(holder: ast.expr) -> bool:
    return not isinstance(holder, ast.Name) or holder.id == "cls" or holder.id[:1].isupper()


def _may_be_own(holder: ast.expr, foreign: set[str]) -> bool:
    """Whether an expression may be an object of the enclosing class, or the class itself."""
    if isinstance(holder, ast.Name):
        return holder.id not in foreign
    # `self.model` is another object; `type(self)` and `self.__class__` are the class.
    return not isinstance(holder, ast.Attribute) or holder.attr == "__class__"


def _only_reads(parent: ast.AST, dictionary: ast.Attribute) -> bool:
    """Whether `something.__dict__` is only read, or written with a constant name."""
    match parent:
        case ast.Subscript(ctx=ctx, slice=key):
            return isinstance(ctx, ast.Load) or isinstance(key, ast.Constant)
        case ast.Attribute(attr=method):
            return method in READING_METHODS
        case ast.Call(func=ast.Name(id=name)):
            return name in READERS
        case ast.For(iter=iterated) | ast.comprehension(iter=iterated):
            return iterated is dictionary
        case ast.Compare() | ast.Dict() | ast.keyword(arg=None) | ast.Starred():
            return True
    return False
