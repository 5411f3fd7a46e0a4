"""Reads and writes variables, attributes and elements of a followed program."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from harness.compat.lint.dry_run.parallel_layout import Mesh
from harness.compat.lint.dry_run.program_values import (
    MAX_SIZE,
    NO_KEYS,
    OPTIONAL,
    UNKNOWN,
    Actor,
    Bound,
    Class,
    Config,
    Entries,
    Function,
    Instance,
    Lazy,
    Native,
    Partial,
    Scope,
    Super,
    Unknown,
    Value,
    external,
    has_open_keys,
    is_key,
    is_optional,
    remote,
    shown,
    sources_of,
    unknown_from,
)
from harness.compat.lint.dry_run.worker_groups import WorkerGroup

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk


class Access:
    """Variables, attributes and elements."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run

    def store(self, target: ast.expr, value: Value, keys: frozenset[str], scope: Scope) -> None:
        """Assign a value. keys: the configuration keys on which it rests."""
        match target:
            case ast.Name():
                holder = scope
                if target.id in scope.global_names:
                    holder = scope.module
                elif target.id in scope.outer_names and scope.parent is not None:
                    holder = scope.parent.holder(target.id) or scope
                self._run.journal.touch(holder.variables, holder.made_in)
                holder.variables[target.id] = value
                holder.keys[target.id] = keys
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, keys, scope)
            case ast.Starred():
                self.store(target.value, value, keys, scope)
            case ast.Attribute():
                holder_value = self._run.expressions.value(target.value, scope)
                self.set_attribute(holder_value, target.attr, value, keys, target, scope)
            case ast.Subscript():
                container, index = (
                    self._run.expressions.value(target.value, scope),
                    self._run.expressions.value(target.slice, scope),
                )
                self._set_item(container, index, value, keys)

    def _unpack(self, targets: Sequence[ast.expr], value: Value, keys: frozenset[str], scope: Scope) -> None:
        items = self.items(value)
        known = not isinstance(items, Unknown) and len(items) == len(targets)
        if any(isinstance(one, ast.Starred) for one in targets):
            known = False
        for index, target in enumerate(targets):
            item = items[index] if known and not isinstance(items, Unknown) else unknown_from(value)
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

    def _set_item(self, container: Value, index: Value, value: Value, keys: frozenset[str]) -> None:
        if isinstance(container, (dict, list)):
            self._run.journal.touch(container)
        if isinstance(container, dict):
            if isinstance(index, Unknown):
                for name in container:
                    container[name] = unknown_from(index, value)
            if is_key(index):
                container[index] = value
                if isinstance(container, Entries):
                    container.behind[index] = keys
        elif isinstance(container, list):
            if isinstance(index, int) and -len(container) <= index < len(container):
                container[index] = value
            else:
                container[:] = [OPTIONAL]

    def items(self, value: Value) -> Sequence[Value] | Unknown:
        """The elements over which a loop goes."""
        value = self._run.modules.resolve(value)
        if isinstance(value, (list, tuple, str, range)):
            return list(value[:MAX_SIZE])
        if isinstance(value, dict):
            return list(value)
        if isinstance(value, (set, frozenset)):
            return sorted(value, key=repr)
        if isinstance(value, Class) and value.inherits("enum.Enum", "enum.IntEnum"):
            return [one for one in value.scope.variables.values() if isinstance(one, Instance)]
        repeats = isinstance(value, Unknown) and value.repeats
        return Unknown(sources=sources_of(value), repeats=True) if repeats else unknown_from(value)

    def attribute(self, holder: Value, name: str, node: ast.expr, scope: Scope) -> Value:
        """`holder.name`."""
        kind = type(holder)
        if kind is Lazy:
            holder = self._run.modules.resolve(holder)
            kind = type(holder)
        # The most frequent ones come first, and are compared by their class itself.
        if kind is Unknown:
            unknown = cast("Unknown", holder)
            if not unknown.name or unknown.sources:
                return unknown_from(unknown)
            return external(f"{unknown.name}.{name}")
        if kind is Config:
            return self._config_entry(cast("Config", holder), name, node, scope)
        if kind is Instance or kind is Super or kind is Class:
            return self._run.calls.member(cast("Instance | Super | Class", holder), name, node, scope)
        return self._other_attribute(holder, name, node, scope)

    def _other_attribute(self, holder: Value, name: str, node: ast.expr, scope: Scope) -> Value:
        if isinstance(holder, Lazy):
            return self._module_member(holder, name)
        if isinstance(holder, Config):
            return self._config_entry(holder, name, node, scope)
        if isinstance(holder, Mesh):
            return holder.member(name)
        if isinstance(holder, WorkerGroup):
            return holder.member(name, self._run, node, scope)
        if isinstance(holder, (Function, Bound, Partial, Native, Actor)):
            return remote(holder, name) if name in ("remote", "options") else UNKNOWN
        if isinstance(holder, (bool, int, float, str)):
            return self._plain_member(holder, name, node, scope)
        return self._run.builtins.method(holder, name)

    def _plain_member(self, holder: Value, name: str, node: ast.expr, scope: Scope) -> Value:
        if not hasattr(holder, name):
            message = f"'{type(holder).__name__}' object has no attribute '{name}'"
            raise self._run.error("AttributeError", message, node, scope)
        return self._run.builtins.method(holder, name)

    def _module_member(self, module: Lazy, name: str) -> Value:
        scope = self._run.modules.module(module.path)
        if name in scope.variables:
            return self._run.modules.resolve(scope.variables[name])
        computed = scope.variables.get("__getattr__")
        if isinstance(computed, Function):
            return self._run.calls.function(computed, [name], {}, computed.node, scope)
        folder = module.path.removesuffix("/__init__.py").replace("/", ".")
        inner = self._run.modules.path_of(f"{folder}.{name}")
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
        method = self._run.builtins.method(holder, name)
        if not isinstance(method, Unknown):
            return method
        self._run.trace.add(holder.key(name))
        raise self._run.error("ConfigAttributeError", f"there is no key {holder.key(name)}", node, scope)

    def item(self, container: Value, index: Value, node: ast.expr, scope: Scope) -> Value:
        """`container[index]`."""
        if isinstance(container, Unknown) and container.name == "os.environ" and isinstance(index, str):
            return self._run.libraries.environment(index, UNKNOWN)
        if isinstance(index, Unknown) or isinstance(container, Unknown):
            return unknown_from(index, container)
        if isinstance(container, Mesh):
            return container.part(index)
        if isinstance(container, Config) and isinstance(index, str):
            return self._config_entry(container, index, node, scope)
        if isinstance(container, (list, tuple)) and any(is_optional(one) for one in container):
            return UNKNOWN
        if isinstance(container, dict) and not (
            is_key(index) and (index in container or not has_open_keys(container))
        ):
            return UNKNOWN
        if not isinstance(container, (dict, list, tuple, str, range)):
            return UNKNOWN
        if isinstance(container, Entries):
            self._run.trace |= container.behind.get(index, NO_KEYS)
        try:
            return self._run.modules.resolve(_entry(container, index))
        except (KeyError, IndexError) as error:
            raise self._run.error(type(error).__name__, shown(index), node, scope) from None
        except TypeError:
            return UNKNOWN


def _entry(container: Any, index: Value) -> Value:
    return container[index]
