"""Calls of functions, classes and methods in a followed program."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.journal import same
from harness.compat.lint.dry_run.jumps import ReturnJump
from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Actor,
    Bound,
    Class,
    Entries,
    FieldDefault,
    Function,
    Instance,
    Lazy,
    Native,
    Partial,
    Scope,
    Super,
    Unknown,
    Value,
    named_keys,
    remote,
    signature,
    unknown_from,
    written,
)
from harness.compat.lint.dry_run.worker_groups import replaced_function

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

MAX_DEPTH = 45
#: Classes of vLLM that take the options of its engine by name.
STARTS_ENGINE = tuple(
    f"vllm.{name}" for name in ("LLM", "AsyncEngineArgs", "EngineArgs", "engine.arg_utils.AsyncEngineArgs")
)
Named = dict[str, Value]
ArgumentKeys = Mapping[int | str, frozenset[str]]
NO_KEYS: ArgumentKeys = {}
NOTHING_READ: frozenset[str] = frozenset()
Keys = Mapping[str, frozenset[str]]


class Calls:
    """Calls what the followed program calls."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        self._depth = 0
        #: The arguments of the calls that are being followed, by the identity of the function.
        self._open_calls: dict[int, list[tuple[Sequence[Value], Named]]] = {}
        self._actors: dict[str, Value] = {}

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The value of a call expression."""
        if type(node.func) is ast.Name and node.func.id == "super" and not node.args:
            return self._super(scope)
        callee = self._run.expressions.value(node.func, scope)
        positional: list[Value] = []
        named: Named = {}
        keys: dict[int | str, frozenset[str]] = {}
        certain = True
        if node.args or node.keywords:
            with self._run.traced() as read:
                certain = self._arguments(node, scope, positional, named, read, keys)
        if not certain and isinstance(callee, (Function, Bound, Class, Partial)):
            return unknown_from(*positional, *named.values())
        return self.apply(callee, positional, named, node, scope, keys)

    def _arguments(
        self,
        node: ast.Call,
        scope: Scope,
        positional: list[Value],
        named: Named,
        read: set[str],
        keys: dict[int | str, frozenset[str]],
    ) -> bool:
        """Compute the arguments of a call, and the keys behind each. Whether their number is certain.

        read: the trace; each argument's part of it is found by emptying it before.
        """
        value_of, certain = self._run.expressions.value, True
        every: set[str] = set()
        try:
            for argument in node.args:
                if type(argument) is ast.Starred:
                    items = self._run.access.items(value_of(argument.value, scope))
                    certain = certain and not isinstance(items, Unknown)
                    positional += [] if isinstance(items, Unknown) else items
                else:
                    positional.append(value_of(argument, scope))
                if read:
                    keys[len(positional) - 1] = frozenset(read)
                    every |= read
                    read.clear()
            for keyword in node.keywords:
                value = value_of(keyword.value, scope)
                entries = {keyword.arg: value} if keyword.arg is not None else self._entries(value)
                certain = certain and entries is not None
                named |= entries or {}
                if read:
                    keys |= dict.fromkeys(entries or {}, frozenset(read))
                    every |= read
                    read.clear()
        finally:
            read |= every
        return certain

    def _entries(self, value: Value) -> Named | None:
        if isinstance(value, Instance):
            return dict(value.attributes)
        if isinstance(value, dict) and all(isinstance(name, str) for name in value):
            return dict(value)
        return None

    def _super(self, scope: Scope) -> Value:
        holder = scope.holder("__function__")
        function = holder.variables["__function__"] if holder else None
        if not isinstance(function, Function) or function.owner is None or holder is None:
            return UNKNOWN
        node = function.node
        first = node.args.args[0].arg if node.args.args else ""
        receiver = holder.variables.get(first)
        if isinstance(receiver, Instance):
            return Super(receiver=receiver, after=function.owner)
        return UNKNOWN

    def apply(
        self,
        callee: Value,
        positional: list[Value],
        named: Named,
        node: ast.AST,
        scope: Scope,
        keys: ArgumentKeys = NO_KEYS,
    ) -> Value:
        """Call a value with arguments. keys: the configuration keys behind them, by position or name."""
        if type(callee) is Lazy:
            callee = self._run.modules.resolve(callee)
        if type(callee) is Unknown:
            if callee.name in STARTS_ENGINE and isinstance(node, ast.Call):
                self._run.start_engine(_written_arguments(node, named, keys), by_command=False)
            return self._run.libraries.call(callee, positional, named, node, scope)
        match callee:
            case Bound():
                every = [callee.receiver, *positional]
                return self.function(callee.function, every, named, node, scope, _shifted(keys, 1))
            case Function():
                return self.function(callee, positional, named, node, scope, keys)
            case Class():
                return self.construct(callee, positional, named, node, scope, keys)
            case Actor():
                return self._actor(callee.made, positional, named, node, scope, keys)
            case Partial():
                every = [*callee.arguments, *positional]
                shifted = _shifted(keys, len(callee.arguments))
                return self.apply(callee.function, every, {**callee.named, **named}, node, scope, shifted)
            case Native():
                return callee.compute(positional, named)
            case Instance():
                return self.method(callee, "__call__", positional, node, scope, named)
        return UNKNOWN

    def method(
        self,
        receiver: Instance,
        name: str,
        positional: Sequence[Value],
        node: ast.AST,
        scope: Scope,
        named: Named | None = None,
    ) -> Value:
        """Call a method of an object; unknown if there is none."""
        found, member = receiver.type.attribute(name)
        if not found or not isinstance(member, Function):
            return UNKNOWN
        return self.function(member, [receiver, *positional], named or {}, node, scope)

    def function(
        self,
        function: Function,
        positional: list[Value],
        named: Named,
        node: ast.AST,
        scope: Scope,
        keys: ArgumentKeys = NO_KEYS,
    ) -> Value:
        """Call a function of verl."""
        replacement = replaced_function(function, self._run)
        if replacement is not None:
            return replacement(positional, named)
        calls = self._open_calls.setdefault(id(function), [])
        parameters = signature(function.node)
        is_repeated = bool(calls) and _is_repeated(calls, positional, named)
        if self._depth >= MAX_DEPTH or parameters.is_generator or is_repeated:
            return unknown_from(*positional, *named.values())
        inner = Scope(function.scope, function.scope.path, self._run.journal.innermost)
        inner.variables["__function__"] = function
        self._bind(function, positional, named, inner, node, scope)
        if keys:
            inner.keys |= _by_name(keys, parameters.positional)
        self._depth += 1
        calls.append((positional, named))
        before, self._run.trace = self._run.trace, set()
        may_have_returned = self._run.branches.may_have_returned
        try:
            if type(function.node) is ast.Lambda:
                return self._run.expressions.value(function.node.body, inner)
            self._run.statements.block(function.node.body, inner)  # type: ignore[arg-type]
        except ReturnJump as jump:
            before |= jump.keys
            return jump.value
        finally:
            if self._run.trace:
                before |= self._run.trace
            self._run.trace = before
            self._run.branches.may_have_returned = may_have_returned
            self._depth -= 1
            calls.pop()
        return None

    def _bind(
        self,
        function: Function,
        positional: Sequence[Value],
        named: Named,
        inner: Scope,
        node: ast.AST,
        scope: Scope,
    ) -> None:
        parameters, variables = signature(function.node), inner.variables
        names = parameters.positional
        extra: Named = {}
        variables.update(zip(names, positional, strict=False))
        for name, value in named.items():
            is_known = name in names or name in parameters.named
            (variables if is_known else extra)[name] = value
        if parameters.rest:
            variables[parameters.rest] = tuple(positional[len(names) :])
        elif len(positional) > len(names):
            raise self._run.error("TypeError", f"{function.name}() takes {len(names)} arguments", node, scope)
        if parameters.named_rest:
            variables[parameters.named_rest] = extra
        elif extra:
            message = f"{function.name}() got an unexpected keyword argument '{min(extra)}'"
            raise self._run.error("TypeError", message, node, scope)
        for name in (*names, *parameters.named):
            if name not in variables:
                # An argument that is missing here is more likely our mistake than the program's.
                variables[name] = function.defaults.get(name, UNKNOWN)

    def construct(
        self,
        kind: Class,
        positional: list[Value],
        named: Named,
        node: ast.AST,
        scope: Scope,
        keys: ArgumentKeys = NO_KEYS,
    ) -> Value:
        """Make an object of a class of verl. keys: the configuration keys behind the arguments."""
        replacement = replaced_function(kind, self._run)
        if replacement is not None:
            return replacement(positional, named)
        if kind.inherits("enum.Enum", "enum.IntEnum"):
            members = [one for one in kind.scope.variables.values() if isinstance(one, Instance)]
            found = [one for one in members if positional and one.attributes.get("value") == positional[0]]
            return found[0] if found else UNKNOWN
        instance = Instance(type=kind)
        has_init, init = kind.attribute("__init__")
        if has_init and isinstance(init, Function):
            self.function(init, [instance, *positional], named, node, scope, _shifted(keys, 1))
        elif kind.is_dataclass:
            fields = list(kind.dataclass_fields())
            given = {**dict(zip(fields, positional, strict=False)), **named}
            self._fill_fields(instance, given, _by_name(keys, fields), node, scope)
        return instance

    def _actor(
        self,
        kind: Class,
        positional: list[Value],
        named: Named,
        node: ast.AST,
        scope: Scope,
        keys: ArgumentKeys,
    ) -> Value:
        """An object in another process. One that gets what an earlier one got passes the same checks."""
        given = [kind, *positional, *named, *named.values()]
        identity = repr([len(positional), self._run.journal.config_changes, *map(_identity, given)])
        known = self._actors.get(identity)
        if isinstance(known, _Made):
            self._run.trace |= known.keys
            return known.value
        with self._run.traced() as read:
            value = self.construct(kind, positional, named, node, scope, keys)
        self._run.journal.touch(self._actors)
        self._actors[identity] = _Made(value=value, keys=frozenset(read), given=given)
        return value

    def _fill_fields(
        self,
        instance: Instance,
        given: Named,
        keys: Mapping[str, frozenset[str]],
        node: ast.AST,
        scope: Scope,
    ) -> None:
        fields = instance.type.dataclass_fields()
        for name in given:
            if name not in fields and not instance.type.open_bases:
                message = f"{instance.type.name}.__init__() got an unexpected keyword argument '{name}'"
                error = self._run.error("TypeError", message, node, scope)
                error.keys |= keys.get(name, frozenset())
                raise error
        for name in fields:
            if name in given:
                self._run.access.set_directly(instance, name, given[name], keys.get(name, frozenset()))
                continue
            found, default = instance.type.attribute(name)
            if isinstance(default, FieldDefault):
                default = (
                    self.apply(default.factory, [], {}, node, scope)
                    if default.factory is not None
                    else default.value
                )
            self._run.access.set_directly(instance, name, default if found else UNKNOWN, frozenset())
        self.method(instance, "__post_init__", [], node, scope)

    def member(self, holder: Instance | Super | Class, name: str, node: ast.AST, scope: Scope) -> Value:
        """An attribute of an object, of a class, or of `super()`."""
        if isinstance(holder, Super):
            return self._super_member(holder, name)
        if isinstance(holder, Class):
            return self._class_member(holder, name)
        if name == "__dict__":
            return holder.attributes
        if name == "__class__":
            return holder.type
        if name in holder.attributes:
            keys, value = holder.keys.get(name), holder.attributes[name]
            if keys:
                self._run.trace |= keys
            return self._run.modules.resolve(value) if type(value) is Lazy else value
        found, member = holder.type.attribute(name)
        if not found:
            return self._absent(holder, name, node, scope)
        if isinstance(member, Function):
            return self._bound(member, holder, node, scope)
        if isinstance(member, FieldDefault):
            return UNKNOWN
        return self._run.modules.resolve(member)

    def _bound(self, member: Function, holder: Instance, node: ast.AST, scope: Scope) -> Value:
        if member.is_property:
            return self.function(member, [holder], {}, node, scope)
        if member.is_static:
            return member
        receiver = holder.type if member.is_class_method else holder
        return Bound(function=member, receiver=receiver)

    def _absent(self, holder: Instance, name: str, node: ast.AST, scope: Scope) -> Value:
        if holder.type.is_dataclass and not holder.type.open_bases:
            if holder.type.attribute("__getattr__")[0]:
                return UNKNOWN
            if name in ("items", "keys", "values"):
                return self._run.builtins.method(dict(holder.attributes), name)
            message = f"'{holder.type.name}' object has no attribute '{name}'"
            raise self._run.error("AttributeError", message, node, scope)
        found, computed = holder.type.attribute("__getattr__")
        if found and isinstance(computed, Function) and not name.startswith("__"):
            return self.function(computed, [holder, name], {}, node, scope)
        return UNKNOWN

    def _class_member(self, holder: Class, name: str) -> Value:
        if name == "__name__":
            return holder.name
        if name in ("remote", "options"):
            return remote(holder, name)
        found, member = holder.attribute(name)
        if found and isinstance(member, Function) and member.is_class_method:
            return Bound(function=member, receiver=holder)
        if found and not isinstance(member, FieldDefault):
            return self._run.modules.resolve(member)
        return UNKNOWN

    def _super_member(self, holder: Super, name: str) -> Value:
        order = holder.receiver.type.order
        after = order[order.index(holder.after) + 1 :] if holder.after in order else []
        for kind in after:
            if name in kind.scope.variables:
                member = kind.scope.variables[name]
                if isinstance(member, Function):
                    return Bound(function=member, receiver=holder.receiver)
                return member
            if name == "__init__" and kind.is_dataclass:
                break
        if name == "__setattr__":
            return Native(name=name, compute=lambda given, _named: self._set_plainly(holder.receiver, given))
        return UNKNOWN

    def _set_plainly(self, receiver: Instance, given: Sequence[Value]) -> Value:
        if len(given) == 2 and isinstance(given[0], str):
            self._run.access.set_directly(receiver, given[0], given[1], frozenset(self._run.trace))
        return None

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope) -> Value:
        """The function that a definition makes, after its decorators."""
        value_of = self._run.expressions.value
        defaults = {name: value_of(default, scope) for name, default in signature(node).defaults}
        owner = scope.variables.get("__class_body__")
        outer = scope.parent if isinstance(owner, Class) and scope.parent is not None else scope
        is_lambda = isinstance(node, ast.Lambda)
        function = Function(
            name="<lambda>" if isinstance(node, ast.Lambda) else node.name,
            node=node,
            scope=outer,
            defaults=defaults,
            owner=owner if isinstance(owner, Class) else None,
        )
        return function if is_lambda else self.decorated(function, _decorators(node), scope)

    def decorated(self, defined: Function | Class, decorators: Sequence[ast.expr], scope: Scope) -> Value:
        """A function or class after its decorators; those of other packages leave it as it is."""
        result: Value = defined
        if not decorators:
            return result
        for decorator in reversed(decorators):
            name = written(decorator.func if isinstance(decorator, ast.Call) else decorator)
            last = name.rpartition(".")[2]
            if isinstance(defined, Class) and last == "dataclass":
                defined.is_dataclass = True
            elif isinstance(result, Function) and last in ("staticmethod", "classmethod"):
                result.is_static, result.is_class_method = last == "staticmethod", last == "classmethod"
            elif isinstance(result, Function) and last in ("property", "cached_property"):
                result.is_property = True
            elif isinstance(defined, Function) and last in ("setter", "deleter"):
                return scope.variables.get(defined.name, defined)
            else:
                wrapper = self._run.expressions.value(decorator, scope)
                if isinstance(wrapper, (Function, Bound, Class, Instance, Partial)):
                    wrapped = self.apply(wrapper, [result], {}, decorator, scope)
                    result = wrapped if isinstance(wrapped, (Function, Class, Bound)) else result
        if isinstance(result, Function) and isinstance(defined, Function) and result is not defined:
            result.owner = result.owner or defined.owner
        return result

    def finish_class(self, defined: Class) -> None:
        """Make the members of an enumeration."""
        if not defined.inherits("enum.Enum", "enum.IntEnum"):
            return
        for number, (name, value) in enumerate(list(defined.scope.variables.items())):
            if isinstance(value, Function) or name.startswith("_"):
                continue
            known = value if not isinstance(value, Unknown) else number
            attributes: Named = {"name": name, "value": known}
            defined.scope.variables[name] = Instance(type=defined, attributes=attributes)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Made:
    """An object, the configuration keys that making it read, and its arguments, which must not be freed."""

    value: Value
    keys: frozenset[str]
    given: Sequence[Value]


def _identity(value: Value) -> tuple[str, Value]:
    """What two arguments have in common if they are the same for what is called."""
    plain = value is None or isinstance(value, (str, int, float))
    return type(value).__name__, value if plain else id(value)


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Sequence[ast.expr]:
    return () if isinstance(node, ast.Lambda) else node.decorator_list


def _is_repeated(
    calls: Sequence[tuple[Sequence[Value], Named]], positional: Sequence[Value], named: Named
) -> bool:
    """Whether an open call of a function has the same arguments: following it again tells nothing."""
    return any(
        len(given) == len(positional)
        and names.keys() == named.keys()
        and all(same(one, other) for one, other in zip(given, positional, strict=True))
        and all(same(one, named[name]) for name, one in names.items())
        for given, names in calls
    )


def _shifted(keys: ArgumentKeys, count: int) -> ArgumentKeys:
    """The keys behind arguments that get `count` others before them."""
    return {key + count if isinstance(key, int) else key: read for key, read in keys.items()}


def _by_name(keys: ArgumentKeys, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """The keys behind arguments by the parameters' names; those of `*arguments` are left out."""
    found: dict[str, frozenset[str]] = {}
    for key, read in keys.items():
        if isinstance(key, str):
            found[key] = read
        elif 0 <= key < len(names):
            found[names[key]] = read
    return found


def _written_arguments(node: ast.Call, named: Named, keys: ArgumentKeys) -> Entries:
    """The named arguments of a call, with the configuration keys that each of them names."""
    entries = Entries()
    nodes = {one.arg: one.value for one in node.keywords}
    for name, value in named.items():
        read = keys.get(name, NOTHING_READ)
        entries.spread({name: value}, named_keys(read, nodes[name]) if name in nodes else read)
    return entries
