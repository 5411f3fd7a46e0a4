"""Computes the expressions of a followed program."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.compat.lint.dry_run.program_values import (
    OPTIONAL,
    UNKNOWN,
    Class,
    Entries,
    Instance,
    Lazy,
    ProgramError,
    Scope,
    Unknown,
    Value,
    is_key,
    is_optional,
    named_keys,
    shown,
    sources_of,
    unknown_from,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk


class Expressions:
    """The values of expressions in scopes of the program."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        # A `match` on the node compares it with one class after the other, which takes four times as long.
        self._kinds: Mapping[type[ast.expr], Callable[[Any, Scope], Value]] = {
            ast.Attribute: self._attribute,
            ast.Call: run.calls.call,
            ast.BinOp: self._binary,
            ast.BoolOp: self._logic,
            ast.Compare: self._compare,
            ast.UnaryOp: self._unary,
            ast.IfExp: self._conditional,
            ast.Subscript: self._subscript,
            ast.JoinedStr: self._joined,
            ast.Lambda: run.calls.define,
            ast.NamedExpr: self._named,
            ast.Await: lambda node, scope: self.value(node.value, scope),
            ast.List: lambda node, scope: self._elements(node.elts, scope),
            ast.Tuple: lambda node, scope: tuple(self._elements(node.elts, scope)),
            ast.Set: lambda node, scope: _as_set(self._elements(node.elts, scope)),
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.DictComp: self._comprehension,
        }

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        kind = type(node)
        # Two of three expressions are names and constants.
        if kind is ast.Name:
            return self._name(node, scope)  # type: ignore[arg-type]
        if kind is ast.Constant:
            return node.value  # type: ignore[attr-defined]
        compute = self._kinds.get(kind)
        return compute(node, scope) if compute is not None else UNKNOWN

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self._run.access.attribute(self.value(node.value, scope), node.attr, node, scope)

    def _binary(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return self._run.operations.binary(node.op, left, right, node, scope)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self._run.access.store(node.target, value, frozenset(), scope)
        return value

    def truth(self, node: ast.expr, scope: Scope) -> bool | Unknown:
        """The truth of a condition."""
        return self._run.operations.truth_of(self.value(node, scope))

    def shown(self, node: ast.expr, scope: Scope) -> str:
        """An expression of a message as text."""
        value = self.value(node, scope)
        return value if isinstance(value, str) else shown(value)

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        name = node.id
        # Most names are variables of the function itself.
        is_own = name in scope.variables and not scope.global_names
        holder = scope if is_own else scope.holder(name)
        if holder is None:
            return self._run.builtins.builtin(name)
        keys, value = holder.keys.get(name), holder.variables[name]
        if keys:
            self._run.trace |= keys
        return self._run.modules.resolve(value) if type(value) is Lazy else value

    def _logic(self, node: ast.BoolOp, scope: Scope) -> Value:
        decisive = isinstance(node.op, ast.Or)
        unknown: list[Value] = []
        value: Value = not decisive
        for operand in node.values:
            value = self._guessed(operand, scope) if unknown else self.value(operand, scope)
            truth = self._run.operations.truth_of(value)
            if truth is decisive:
                return value if not unknown or not isinstance(value, Unknown) else decisive
            if isinstance(truth, Unknown):
                unknown.append(truth)
        return unknown_from(*unknown) if unknown else value

    def _guessed(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression that may not be reached; unknown if it raises an exception."""
        found: list[Value] = []

        def follow() -> None:
            found.append(self.value(node, scope))

        try:
            self._run.branches.fork(frozenset(), [follow, None])
        except ProgramError:
            return UNKNOWN
        return found[0] if found else UNKNOWN

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.value(node.left, scope)
        result: Value = True
        for op, operand in zip(node.ops, node.comparators, strict=True):
            right = self.value(operand, scope)
            result = self._run.operations.compared(op, left, right, node, scope)
            if result is False:
                return False
            left = right
        return result

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self._run.operations.truth_of(value)
            return truth if isinstance(truth, Unknown) else not truth
        if isinstance(value, (int, float)):
            operations: dict[type[ast.unaryop], Callable[[], Value]] = {
                ast.USub: lambda: -value,
                ast.UAdd: lambda: +value,
                ast.Invert: lambda: ~value if isinstance(value, int) else UNKNOWN,
            }
            return operations[type(node.op)]()
        return unknown_from(value)

    def _conditional(self, node: ast.IfExp, scope: Scope) -> Value:
        truth = self.truth(node.test, scope)
        if isinstance(truth, bool):
            return self.value(node.body if truth else node.orelse, scope)
        values = [self._guessed(node.body, scope), self._guessed(node.orelse, scope)]
        return unknown_from(truth, *values)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        container = self.value(node.value, scope)
        if isinstance(container, Instance):
            index = self.value(node.slice, scope)
            return self._run.calls.method(container, "__getitem__", [index], node, scope)
        if isinstance(container, Class) and isinstance(node.slice, ast.expr):
            index = self.value(node.slice, scope)
            found, member = container.attribute(index) if isinstance(index, str) else (False, None)
            return member if found else container if not container.inherits("enum.Enum") else UNKNOWN
        if isinstance(node.slice, ast.Slice):
            return self._slice(container, node.slice, scope)
        return self._run.access.item(container, self.value(node.slice, scope), node, scope)

    def _slice(self, container: Value, node: ast.Slice, scope: Scope) -> Value:
        bounds = [
            self.value(part, scope) if part is not None else None
            for part in (node.lower, node.upper, node.step)
        ]
        if isinstance(container, (list, tuple, str)) and all(
            one is None or isinstance(one, int) for one in bounds
        ):
            try:
                return operator.getitem(container, slice(*bounds))  # type: ignore[arg-type]
            except ValueError:
                return UNKNOWN
        return unknown_from(container, *bounds)

    def _joined(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[Value] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = self.value(part.value, scope)
                value = self._run.operations.text(value, part.value, scope)
                if isinstance(value, float) or part.format_spec is not None:
                    value = UNKNOWN if not isinstance(value, (int, float, str)) else value
                parts.append(repr(value) if part.conversion == ord("r") and isinstance(value, str) else value)
        unknown = [part for part in parts if not isinstance(part, (str, int, float, type(None)))]
        text = "".join(shown(part) for part in parts)
        return Unknown(text=text, sources=sources_of(*unknown)) if unknown else text

    def _elements(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Value]:
        found: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items = self._run.access.items(self.value(node.value, scope))
                found += [OPTIONAL] if isinstance(items, Unknown) else items
            else:
                found.append(self.value(node, scope))
        return found

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        found = Entries()
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            with self._run.traced() as read:
                value = self.value(value_node, scope)
            if key_node is None:
                if not isinstance(value, dict):
                    return unknown_from(value)
                found.spread(value, frozenset(read))
                continue
            key = self.value(key_node, scope)
            if not is_key(key):
                return UNKNOWN
            found[key] = value
            if read:
                found.behind[key] = named_keys(read, value_node)
        return found

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Value:
        inner = Scope(scope, scope.path, self._run.journal.innermost)
        found: list[Value] = []
        pairs: dict[Value, Value] = {}

        def collect() -> None:
            if isinstance(node, ast.DictComp):
                key = self.value(node.key, inner)
                if is_key(key):
                    pairs[key] = self.value(node.value, inner)
                else:
                    pairs[UNKNOWN] = UNKNOWN
            else:
                found.append(self.value(node.elt, inner))

        known = self._generate(node.generators, inner, collect)
        if not isinstance(known, bool):
            return unknown_from(known)
        if isinstance(node, ast.DictComp):
            return pairs
        return _as_set(found) if isinstance(node, ast.SetComp) else found

    def _generate(
        self, generators: Sequence[ast.comprehension], scope: Scope, collect: Callable[[], None]
    ) -> bool | Unknown:
        """Call `collect` for each combination. An unknown if some of them are not known."""
        if not generators:
            collect()
            return True
        first, *rest = generators
        items = self._run.access.items(self.value(first.iter, scope))
        if isinstance(items, Unknown) or any(is_optional(one) for one in items):
            return unknown_from(items)
        for item in items:
            self._run.access.store(first.target, item, frozenset(), scope)
            truths = [self.truth(condition, scope) for condition in first.ifs]
            if False in truths:
                continue
            unknown = [one for one in truths if isinstance(one, Unknown)]
            if unknown:
                return unknown_from(*unknown)
            known = self._generate(rest, scope, collect)
            if not isinstance(known, bool):
                return known
        return True


def _as_set(elements: Sequence[Value]) -> Value:
    if any(isinstance(one, Unknown) or not is_key(one) for one in elements):
        return unknown_from(*elements)
    return set(elements)
