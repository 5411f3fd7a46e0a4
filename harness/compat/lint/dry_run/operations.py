"""Operators of Python on values that may not be known: truth, arithmetic, comparison, containment."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.compat.lint.dry_run.program_values import (
    MAX_SIZE,
    OPTIONAL,
    UNKNOWN,
    Bound,
    Class,
    Config,
    Function,
    Instance,
    Lazy,
    Native,
    Partial,
    Scope,
    Super,
    Unknown,
    Value,
    has_open_keys,
    has_unknown,
    is_key,
    is_open,
    is_optional,
    unknown_from,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

MAX_EXPONENT = 64
_BINARY: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_EQUALITY = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Operations:
    """What operators give for values of the program."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run

    def truth_of(self, value: Value) -> bool | Unknown:
        """Python's truth of a value, if it is known."""
        if isinstance(value, (bool, Unknown)):
            return value
        if isinstance(value, (Lazy, Class, Function, Native, Partial, Bound, Super)):
            return True
        if isinstance(value, Instance):
            if value.type.open_bases or value.type.attribute("__bool__")[0]:
                return UNKNOWN
            return bool(value.attributes) if value.type.attribute("__len__")[0] else True
        if isinstance(value, (list, tuple, dict)) and is_open(value):
            elements = value.values() if isinstance(value, dict) else value
            return True if any(not is_optional(one) for one in elements) else UNKNOWN
        return bool(value)

    def binary(
        self, op: ast.operator, left: Value, right: Value, node: ast.expr | ast.stmt, scope: Scope
    ) -> Value:
        """`left op right`."""
        if isinstance(op, ast.Mod) and isinstance(left, str):
            return UNKNOWN if has_unknown(right) else left
        if isinstance(op, ast.BitOr) and _is_type(left) and _is_type(right):
            return (*_types(left), *_types(right))
        if not (_is_plain(left) and _is_plain(right)) or type(op) not in _BINARY:
            return unknown_from(left, right)
        if isinstance(op, (ast.Pow, ast.LShift)) and not (isinstance(right, int) and right <= MAX_EXPONENT):
            return UNKNOWN
        if _size(left) + _size(right) > MAX_SIZE or (
            isinstance(op, ast.Mult) and _product(left, right) > MAX_SIZE
        ):
            return UNKNOWN
        try:
            return _BINARY[type(op)](left, right)
        except ZeroDivisionError as error:
            raise self._run.error("ZeroDivisionError", str(error), node, scope) from None
        except TypeError as error:
            raise self._run.error("TypeError", str(error), node, scope) from None
        except (ValueError, OverflowError):
            return UNKNOWN

    def compared(self, op: ast.cmpop, left: Value, right: Value, node: ast.expr, scope: Scope) -> Value:
        """`left op right` for a comparison."""
        kind = type(op)
        if kind is ast.In or kind is ast.NotIn:
            found = self._contains(right, left)
            return found if isinstance(found, Unknown) or kind is ast.In else not found
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return unknown_from(left, right)
        if kind in _EQUALITY:
            equal = self._equal(left, right)
            negated = kind is ast.IsNot or kind is ast.NotEq
            return equal if isinstance(equal, Unknown) else equal != negated
        if not (_is_plain(left) and _is_plain(right)):
            return UNKNOWN
        try:
            return bool(_COMPARE[kind](left, right))
        except TypeError as error:
            raise self._run.error("TypeError", str(error), node, scope) from None

    def _equal(self, left: Value, right: Value) -> bool | Unknown:
        if _is_plain(left) and _is_plain(right):
            return bool(left == right)
        if left is right:
            return True
        if isinstance(left, Instance) and isinstance(right, str):
            left, right = right, left
        if isinstance(right, Instance) and isinstance(left, str):
            # An enumeration of texts equals the texts.
            return right.attributes.get("value") == left if right.type.inherits("enum.Enum") else UNKNOWN
        if left is None or right is None:
            return False
        if isinstance(left, (Instance, Class)) and isinstance(right, (Instance, Class)):
            enums = all(isinstance(one, Class) or one.type.inherits("enum.Enum") for one in (left, right))
            return False if enums else UNKNOWN
        return UNKNOWN

    def _contains(self, container: Value, item: Value) -> bool | Unknown:
        if isinstance(item, Unknown) or isinstance(container, Unknown):
            return unknown_from(item, container)
        if isinstance(container, str) and isinstance(item, str):
            return item in container
        if isinstance(container, dict):
            if isinstance(container, Config) and isinstance(item, str):
                self._run.trace.add(container.key(item))
            if not is_key(item):
                return UNKNOWN
            entry = container.get(item, OPTIONAL if has_open_keys(container) else None)
            return unknown_from(entry) if is_optional(entry) else item in container
        if isinstance(container, (list, tuple, set, frozenset, range)):
            results = [self._equal(one, item) if not isinstance(one, Unknown) else one for one in container]
            if True in results:
                return True
            return unknown_from(*results) if any(isinstance(one, Unknown) for one in results) else False
        if isinstance(container, Instance) and container.type.is_dataclass:
            return item in container.attributes
        return UNKNOWN

    def text(self, value: Value, node: ast.AST, scope: Scope) -> Value:
        """`str(value)` of an object; other values as they are."""
        if not isinstance(value, Instance):
            return value
        if value.type.attribute("__str__")[0]:
            return self._run.calls.method(value, "__str__", [], node, scope)
        is_enum = value.type.inherits("enum.Enum")
        return f"{value.type.name}.{value.attributes.get('name')}" if is_enum else UNKNOWN


def _is_type(value: Value) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_type(one) for one in value)
    return isinstance(value, Class) or (isinstance(value, Unknown) and bool(value.name))


def _types(value: Value) -> tuple[Value, ...]:
    """The types of a union."""
    return value if isinstance(value, tuple) else (value,)


def _is_plain(value: Value) -> bool:
    return not has_unknown(value)


def _size(value: Value) -> int:
    """The length of a text or list; that of a number in bits, if it is larger than any setting."""
    if isinstance(value, (str, list, tuple)):
        return len(value)
    return value.bit_length() if isinstance(value, int) and abs(value) > 1 << 64 else 0


def _product(left: Value, right: Value) -> int:
    """The size of `left * right`, at least."""
    if isinstance(left, int) and isinstance(right, int):
        return _size(left) + _size(right)
    return max(_size(left), 1) * right if isinstance(right, int) else left if isinstance(left, int) else 0
