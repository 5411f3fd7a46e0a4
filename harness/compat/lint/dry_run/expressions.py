"""Computes the expressions of a followed program."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.compat.lint.dry_run.parallel_layout import Mesh
from harness.compat.lint.dry_run.values import (
    UNKNOWN,
    Bound,
    Class,
    Config,
    Function,
    Instance,
    Lazy,
    Native,
    Partial,
    ProgramError,
    Scope,
    Super,
    Unknown,
    Value,
    has_unknown,
    remote,
    sources_of,
)
from harness.compat.lint.dry_run.worker_groups import WorkerGroup

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.interpreter import Interpreter

MAX_SIZE = 100_000
_ABSENT_OR_NOT = Unknown(optional=True)
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
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expressions:
    """The values of expressions in scopes of the interpreter."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._run = interpreter

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node, scope)
            case ast.Attribute():
                return self.attribute(self.value(node.value, scope), node.attr, node, scope)
            case ast.Call():
                return self._run.calls.call(node, scope)
            case ast.BinOp():
                left, right = self.value(node.left, scope), self.value(node.right, scope)
                return self.binary(node.op, left, right, node, scope)
            case ast.BoolOp():
                return self._logic(node, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.UnaryOp():
                return self._unary(node, scope)
            case ast.IfExp():
                return self._conditional(node, scope)
            case ast.Subscript():
                return self._subscript(node, scope)
            case ast.JoinedStr():
                return self._joined(node, scope)
            case ast.Lambda():
                return self._run.calls.define(node, scope)
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.store(node.target, value, frozenset(), scope)
                return value
            case ast.Await():
                return self.value(node.value, scope)
        return self._collection(node, scope)

    def _collection(self, node: ast.expr, scope: Scope) -> Value:
        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                elements = self._elements(node.elts, scope)
                if isinstance(node, ast.Tuple):
                    return tuple(elements)
                return elements if isinstance(node, ast.List) else _as_set(elements)
            case ast.Dict():
                return self._dict(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
        return UNKNOWN

    def truth(self, node: ast.expr, scope: Scope) -> bool | Unknown:
        """The truth of a condition."""
        return self.truth_of(self.value(node, scope))

    def truth_of(self, value: Value) -> bool | Unknown:
        """Python's truth of a value, if it is known."""
        if isinstance(value, Unknown):
            return value
        if isinstance(value, (Lazy, Class, Function, Native, Partial, Bound, Super)):
            return True
        if isinstance(value, Instance):
            if value.type.open_bases or value.type.attribute("__bool__")[0]:
                return UNKNOWN
            return bool(value.attributes) if value.type.attribute("__len__")[0] else True
        if isinstance(value, (list, tuple, dict)) and is_open(value):
            elements = value.values() if isinstance(value, dict) else value
            return True if any(not _is_optional(one) for one in elements) else UNKNOWN
        return bool(value)

    def shown(self, node: ast.expr, scope: Scope) -> str:
        """An expression of a message as text."""
        value = self.value(node, scope)
        return value if isinstance(value, str) else _text(value)

    def binary(
        self, op: ast.operator, left: Value, right: Value, node: ast.expr | ast.stmt, scope: Scope
    ) -> Value:
        """`left op right`."""
        if isinstance(op, ast.Mod) and isinstance(left, str):
            return UNKNOWN if has_unknown(right) else left
        if isinstance(op, ast.BitOr) and _is_type(left) and _is_type(right):
            return (*_types(left), *_types(right))
        if not (_is_plain(left) and _is_plain(right)) or type(op) not in _BINARY:
            return Unknown(sources=sources_of(left, right))
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

    def store(self, target: ast.expr, value: Value, keys: frozenset[str], scope: Scope) -> None:
        """Assign a value. keys: the configuration keys on which it rests."""
        match target:
            case ast.Name():
                holder = scope
                if target.id in scope.global_names:
                    holder = scope.module
                elif target.id in scope.outer_names and scope.parent is not None:
                    holder = scope.parent.holder(target.id) or scope
                self._run.journal.touch(holder.variables)
                holder.variables[target.id] = value
                holder.keys[target.id] = keys
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, keys, scope)
            case ast.Starred():
                self.store(target.value, value, keys, scope)
            case ast.Attribute():
                holder_value = self.value(target.value, scope)
                self.set_attribute(holder_value, target.attr, value, keys, target, scope)
            case ast.Subscript():
                container, index = self.value(target.value, scope), self.value(target.slice, scope)
                self._set_item(container, index, value)

    def _unpack(self, targets: Sequence[ast.expr], value: Value, keys: frozenset[str], scope: Scope) -> None:
        items = self.items(value)
        known = not isinstance(items, Unknown) and len(items) == len(targets)
        if any(isinstance(one, ast.Starred) for one in targets):
            known = False
        for index, target in enumerate(targets):
            item = (
                items[index]
                if known and not isinstance(items, Unknown)
                else Unknown(sources=sources_of(value))
            )
            self.store(target, item, keys, scope)

    def set_attribute(
        self, holder: Value, name: str, value: Value, keys: frozenset[str], node: ast.expr, scope: Scope
    ) -> None:
        """`holder.name = value`, by `__setattr__` if the class has one."""
        if isinstance(holder, Instance):
            found, setter = holder.type.attribute("__setattr__")
            if found and isinstance(setter, Function):
                self._run.calls.function(setter, [holder, name, value], {}, node, scope)
                holder.keys[name] = keys
                return
            self.set_directly(holder, name, value, keys)
        elif isinstance(holder, Config):
            self._run.journal.touch(holder)
            holder[name] = value
        elif isinstance(holder, Class):
            self._run.journal.touch(holder.scope.variables)
            holder.scope.variables[name] = value

    def set_directly(self, holder: Instance, name: str, value: Value, keys: frozenset[str]) -> None:
        """Set an attribute as `object.__setattr__` does."""
        self._run.journal.touch(holder.attributes)
        holder.attributes[name] = value
        holder.keys[name] = keys

    def _set_item(self, container: Value, index: Value, value: Value) -> None:
        if isinstance(container, (dict, list)):
            self._run.journal.touch(container)
        if isinstance(container, dict):
            if isinstance(index, Unknown):
                for name in container:
                    container[name] = Unknown(sources=sources_of(index, value))
            if not isinstance(index, (dict, list, set)):
                container[index] = value
        elif isinstance(container, list):
            if isinstance(index, int) and -len(container) <= index < len(container):
                container[index] = value
            else:
                container[:] = [Unknown(optional=True)]

    def items(self, value: Value) -> Sequence[Value] | Unknown:
        """The elements over which a loop goes."""
        value = self._run.resolve(value)
        if isinstance(value, (list, tuple, str, range)):
            return list(value[:MAX_SIZE])
        if isinstance(value, dict):
            return list(value)
        if isinstance(value, (set, frozenset)):
            return sorted(value, key=repr)
        if isinstance(value, Class) and value.inherits("enum.Enum", "enum.IntEnum"):
            return [one for one in value.scope.variables.values() if isinstance(one, Instance)]
        return Unknown(sources=sources_of(value))

    def attribute(self, holder: Value, name: str, node: ast.expr, scope: Scope) -> Value:
        """`holder.name`."""
        holder = self._run.resolve(holder)
        if isinstance(holder, Unknown):
            return Unknown(name=f"{holder.name}.{name}" if holder.name else "", sources=holder.sources)
        if isinstance(holder, Lazy):
            return self._module_member(holder, name)
        if isinstance(holder, Config):
            return self._config_entry(holder, name, node, scope)
        if isinstance(holder, (Instance, Super, Class)):
            return self._run.calls.member(holder, name, node, scope)
        if isinstance(holder, Mesh):
            return holder.member(name)
        if isinstance(holder, WorkerGroup):
            return holder.member(name, self._run, node, scope)
        if isinstance(holder, (Function, Bound, Partial, Native)):
            return remote(holder, name) if name in ("remote", "options") else UNKNOWN
        return self._run.calls.libraries.method(holder, name)

    def _module_member(self, module: Lazy, name: str) -> Value:
        scope = self._run.module(module.path)
        if name in scope.variables:
            return self._run.resolve(scope.variables[name])
        folder = module.path.removesuffix("/__init__.py").replace("/", ".")
        inner = self._run.module_path(f"{folder}.{name}")
        return Lazy(path=inner) if inner else UNKNOWN

    def _config_entry(self, holder: Config, name: str, node: ast.expr, scope: Scope) -> Value:
        if name in holder:
            self._run.trace.add(holder.key(name))
            value = holder[name]
            if value == "???":
                raise self._run.error(
                    "MissingMandatoryValue", f"missing mandatory value: {holder.key(name)}", node, scope
                )
            return value
        method = self._run.calls.libraries.method(holder, name)
        if not isinstance(method, Unknown):
            return method
        self._run.trace.add(holder.key(name))
        raise self._run.error("ConfigAttributeError", f"there is no key {holder.key(name)}", node, scope)

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        holder = scope.holder(node.id)
        if holder is None:
            return self._run.calls.libraries.builtin(node.id)
        self._run.trace |= holder.keys.get(node.id, frozenset())
        return self._run.resolve(holder.variables[node.id])

    def _logic(self, node: ast.BoolOp, scope: Scope) -> Value:
        decisive = isinstance(node.op, ast.Or)
        unknown: list[Value] = []
        value: Value = not decisive
        for operand in node.values:
            value = self._guessed(operand, scope) if unknown else self.value(operand, scope)
            truth = self.truth_of(value)
            if truth is decisive:
                return value if not unknown or not isinstance(value, Unknown) else decisive
            if isinstance(truth, Unknown):
                unknown.append(truth)
        return Unknown(sources=sources_of(*unknown)) if unknown else value

    def _guessed(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression that may not be reached; unknown if it raises an exception."""
        found: list[Value] = []

        def follow() -> None:
            found.append(self.value(node, scope))

        try:
            self._run.fork(frozenset(), [follow, lambda: None])
        except ProgramError:
            return UNKNOWN
        return found[0] if found else UNKNOWN

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.value(node.left, scope)
        result: Value = True
        for op, operand in zip(node.ops, node.comparators, strict=True):
            right = self.value(operand, scope)
            result = self._compared(op, left, right, node, scope)
            if result is False:
                return False
            left = right
        return result

    def _compared(self, op: ast.cmpop, left: Value, right: Value, node: ast.expr, scope: Scope) -> Value:
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self._contains(right, left)
            return found if isinstance(found, Unknown) or isinstance(op, ast.In) else not found
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return Unknown(sources=sources_of(left, right))
        if isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
            equal = self._equal(left, right)
            negated = isinstance(op, (ast.IsNot, ast.NotEq))
            return equal if isinstance(equal, Unknown) else equal != negated
        if not (_is_plain(left) and _is_plain(right)):
            return UNKNOWN
        try:
            return bool(_COMPARE[type(op)](left, right))
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
            return Unknown(sources=sources_of(item, container))
        if isinstance(container, str) and isinstance(item, str):
            return item in container
        if isinstance(container, dict):
            if isinstance(container, Config) and isinstance(item, str):
                self._run.trace.add(container.key(item))
            if isinstance(item, (dict, list, set)):
                return UNKNOWN
            entry = container.get(item, _ABSENT_OR_NOT if has_open_keys(container) else None)
            return Unknown(sources=sources_of(entry)) if _is_optional(entry) else item in container
        if isinstance(container, (list, tuple, set, frozenset, range)):
            results = [self._equal(one, item) if not isinstance(one, Unknown) else one for one in container]
            if True in results:
                return True
            return (
                Unknown(sources=sources_of(*results))
                if any(isinstance(one, Unknown) for one in results)
                else False
            )
        if isinstance(container, Instance) and container.type.is_dataclass:
            return item in container.attributes
        return UNKNOWN

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth_of(value)
            return truth if isinstance(truth, Unknown) else not truth
        if isinstance(value, (int, float)):
            operations: dict[type[ast.unaryop], Callable[[], Value]] = {
                ast.USub: lambda: -value,
                ast.UAdd: lambda: +value,
                ast.Invert: lambda: ~value if isinstance(value, int) else UNKNOWN,
            }
            return operations[type(node.op)]()
        return Unknown(sources=sources_of(value))

    def _conditional(self, node: ast.IfExp, scope: Scope) -> Value:
        truth = self.truth(node.test, scope)
        if isinstance(truth, bool):
            return self.value(node.body if truth else node.orelse, scope)
        values = [self._guessed(node.body, scope), self._guessed(node.orelse, scope)]
        return Unknown(sources=sources_of(truth, *values))

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
        return self.item(container, self.value(node.slice, scope), node, scope)

    def item(self, container: Value, index: Value, node: ast.expr, scope: Scope) -> Value:
        """`container[index]`."""
        if isinstance(container, Unknown) and container.name == "os.environ" and isinstance(index, str):
            return self._run.calls.libraries.environment(index, UNKNOWN)
        if isinstance(index, Unknown) or isinstance(container, Unknown):
            return Unknown(sources=sources_of(index, container))
        if isinstance(container, Mesh):
            return container.part(index)
        if isinstance(container, Config) and isinstance(index, str):
            return self._config_entry(container, index, node, scope)
        if isinstance(container, (list, tuple)) and any(_is_optional(one) for one in container):
            return UNKNOWN
        if isinstance(container, dict) and index not in container and has_open_keys(container):
            return UNKNOWN
        if not isinstance(container, (dict, list, tuple, str, range)):
            return UNKNOWN
        try:
            return self._run.resolve(_entry(container, index))
        except (KeyError, IndexError) as error:
            raise self._run.error(type(error).__name__, _text(index), node, scope) from None
        except TypeError:
            return UNKNOWN

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
        return Unknown(sources=sources_of(container, *bounds))

    def _joined(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[Value] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = self.value(part.value, scope)
                value = self.text(value, part.value, scope)
                if isinstance(value, float) or part.format_spec is not None:
                    value = UNKNOWN if not isinstance(value, (int, float, str)) else value
                parts.append(repr(value) if part.conversion == ord("r") and isinstance(value, str) else value)
        unknown = [part for part in parts if not isinstance(part, (str, int, float, type(None)))]
        text = "".join(_text(part) for part in parts)
        return Unknown(text=text, sources=sources_of(*unknown)) if unknown else text

    def text(self, value: Value, node: ast.AST, scope: Scope) -> Value:
        """`str(value)` of an object; other values as they are."""
        if not isinstance(value, Instance):
            return value
        if value.type.attribute("__str__")[0]:
            return self._run.calls.method(value, "__str__", [], node, scope)
        is_enum = value.type.inherits("enum.Enum")
        return f"{value.type.name}.{value.attributes.get('name')}" if is_enum else UNKNOWN

    def _elements(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Value]:
        found: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items = self.items(self.value(node.value, scope))
                found += [Unknown(optional=True)] if isinstance(items, Unknown) else items
            else:
                found.append(self.value(node, scope))
        return found

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        found: dict[Value, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.value(value_node, scope)
            if key_node is None:
                if not isinstance(value, dict):
                    return Unknown(sources=sources_of(value))
                found |= value
                continue
            key = self.value(key_node, scope)
            if isinstance(key, (list, dict, set)):
                return UNKNOWN
            found[key] = value
        return found

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Value:
        inner = Scope(scope, scope.path)
        found: list[Value] = []
        pairs: dict[Value, Value] = {}

        def collect() -> None:
            if isinstance(node, ast.DictComp):
                pairs[self.value(node.key, inner)] = self.value(node.value, inner)
            else:
                found.append(self.value(node.elt, inner))

        known = self._generate(node.generators, inner, collect)
        if not isinstance(known, bool):
            return Unknown(sources=known.sources)
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
        items = self.items(self.value(first.iter, scope))
        if isinstance(items, Unknown) or any(_is_optional(one) for one in items):
            return Unknown(sources=sources_of(items))
        for item in items:
            self.store(first.target, item, frozenset(), scope)
            truths = [self.truth(condition, scope) for condition in first.ifs]
            if False in truths:
                continue
            unknown = [one for one in truths if isinstance(one, Unknown)]
            if unknown:
                return Unknown(sources=sources_of(*unknown))
            known = self._generate(rest, scope, collect)
            if not isinstance(known, bool):
                return known
        return True


def _text(value: Value) -> str:
    if isinstance(value, Unknown):
        return value.text or "?"
    if isinstance(value, (Instance, Function, Class, Bound, Native, Partial, Super, Lazy, Config)):
        return "..."
    return str(value)


def _as_set(elements: Sequence[Value]) -> Value:
    if any(isinstance(one, (Unknown, list, dict, set)) for one in elements):
        return Unknown(sources=sources_of(*elements))
    return set(elements)


def _is_type(value: Value) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_is_type(one) for one in value)
    return isinstance(value, Class) or (isinstance(value, Unknown) and bool(value.name))


def _types(value: Value) -> tuple[Value, ...]:
    """The types of a union."""
    return value if isinstance(value, tuple) else (value,)


def _entry(container: Any, index: Value) -> Value:
    return container[index]


def has_open_keys(container: Mapping[Value, Value]) -> bool:
    """Whether a mapping has entries whose keys are not known."""
    return any(isinstance(key, Unknown) for key in container)


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


def is_open(value: Value) -> bool:
    """Whether a list or mapping may have more or fewer elements than these."""
    if isinstance(value, dict):
        return has_open_keys(value) or any(_is_optional(one) for one in value.values())
    return isinstance(value, (list, tuple)) and any(_is_optional(one) for one in value)


def _is_optional(value: Value) -> bool:
    return isinstance(value, Unknown) and value.optional
