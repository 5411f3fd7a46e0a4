"""Builtin functions of Python, and methods of its texts, lists and mappings."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.program_values import (
    NO_KEYS,
    OPTIONAL,
    UNKNOWN,
    Bound,
    Class,
    Config,
    Entries,
    Function,
    Instance,
    LibraryCall,
    Native,
    Options,
    Partial,
    Unknown,
    Value,
    external,
    has_open_keys,
    has_unknown,
    is_key,
    is_open,
    sources_of,
    unknown_from,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

Named = dict[str, Value]
#: Builtin functions without effects, which are computed if all arguments are known.
_PURE: AbstractSet[str] = {
    "abs",
    "all",
    "any",
    "bool",
    "dict",
    "divmod",
    "enumerate",
    "float",
    "frozenset",
    "int",
    "len",
    "list",
    "max",
    "min",
    "range",
    "repr",
    "reversed",
    "round",
    "set",
    "sorted",
    "str",
    "sum",
    "tuple",
    "zip",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "bool": (bool,),
    "bytes": (bytes,),
    "dict": (dict,),
    "list": (list,),
    "tuple": (tuple,),
    "set": (set,),
    "omegaconf.DictConfig": (Config,),
    "collections.abc.Mapping": (dict,),
    "typing.Mapping": (dict,),
    "numbers.Number": (int, float),
    "typing.Sequence": (list, tuple, str),
    "collections.abc.Sequence": (list, tuple, str),
}
#: Methods of texts and numbers, none of which changes anything.
_TEXT_METHODS: AbstractSet[str] = {
    "capitalize",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isdigit",
    "join",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
}
_CHANGING: AbstractSet[str] = {
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "clear",
    "update",
    "setdefault",
    "add",
    "discard",
}
_READING: AbstractSet[str] = {
    "get",
    "items",
    "keys",
    "values",
    "copy",
    "index",
    "count",
    "union",
    "intersection",
    "difference",
    "issubset",
    "issuperset",
}


class Builtins:
    """Functions and methods of Python itself."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        self.functions: Mapping[str, Callable[[LibraryCall], Value]] = {
            "builtins.getattr": self._getattr,
            "builtins.hasattr": self._hasattr,
            "builtins.setattr": self._setattr,
            "object.__setattr__": self._setattr,
            "builtins.isinstance": self._isinstance,
            "builtins.issubclass": self._issubclass,
            "builtins.type": self._type,
            "builtins.callable": self._callable,
            "builtins.map": self._map,
            **{f"builtins.{name}": partial(self._pure, name) for name in _PURE},
            **{name: partial(self._pure, name) for name in _PURE},
        }

    def builtin(self, name: str) -> Value:
        """A builtin name."""
        if name == "__name__":
            return "imported"
        return external(name if name in _TYPES or name == "object" else f"builtins.{name}")

    def _pure(self, name: str, call: LibraryCall) -> Value:
        arguments = [
            self._run.access.items(one) if isinstance(one, Class) else one for one in call.positional
        ]
        sources = sources_of(*arguments, *call.named.values())
        unknown = Unknown(sources=sources, repeats=not sources and _repeats(name, arguments))
        first = arguments[0] if arguments else None
        if name == "len" and isinstance(first, (list, tuple, dict)):
            return UNKNOWN if is_open(first) else len(first)
        if name == "str" and isinstance(first, Instance):
            return self._run.operations.text(first, call.node, call.scope)
        if name == "bool" and arguments:
            return self._run.operations.truth_of(first)
        if name in ("any", "all") and isinstance(first, (list, tuple)):
            truths = [self._run.operations.truth_of(one) for one in first]
            if (name == "any") in truths:
                return name == "any"
            return unknown_from(*truths) if any(isinstance(one, Unknown) for one in truths) else name == "all"
        if name in ("list", "tuple") and isinstance(first, (list, tuple, dict, set, str, range)):
            elements = list(first)
            return elements if name == "list" else tuple(elements)
        if name == "dict" and (first is None or isinstance(first, dict)):
            return {**(first or {}), **call.named}
        if name == "set" and not arguments:
            return set()
        if name in ("zip", "enumerate") and all(
            isinstance(one, (list, tuple, range, dict)) for one in arguments
        ):
            return [tuple(one) for one in getattr(builtins, name)(*arguments)]
        if call.named or any(has_unknown(one) and not isinstance(one, range) for one in arguments):
            return unknown
        try:
            result = getattr(builtins, name)(*arguments)
        except ValueError as error:
            if name in ("int", "float"):
                raise self._run.error("ValueError", str(error), call.node, call.scope) from None
            return unknown
        except (TypeError, OverflowError, MemoryError):
            return unknown
        return list(result) if name == "reversed" else result

    def method(self, holder: Value, name: str) -> Value:
        """A method of a plain value."""
        if isinstance(holder, str) and name in _TEXT_METHODS:
            return Native(name=name, compute=lambda given, named: self._of_text(holder, name, given, named))
        if isinstance(holder, (dict, list, tuple, set, frozenset)) and hasattr(holder, name):
            if name in _CHANGING and isinstance(holder, (dict, list, set)):
                return Native(
                    name=name, compute=lambda given, named: self._change(holder, name, given, named)
                )
            if name in _READING:
                return Native(name=name, compute=lambda given, _named: self._read(holder, name, given))
        return UNKNOWN

    def _of_text(self, holder: str, name: str, given: list[Value], named: Named) -> Value:
        if any(has_unknown(one) for one in (*given, *named.values())):
            return unknown_from(*given)
        try:
            return getattr(holder, name)(*given, **named)
        except (TypeError, ValueError, KeyError, IndexError):
            return UNKNOWN

    def _change(
        self,
        holder: dict[str, Value] | list[Value] | set[Value],
        name: str,
        given: list[Value],
        named: Named,
    ) -> Value:
        self._run.journal.touch(holder)
        if isinstance(holder, dict) and name == "update":
            holder.update(named)
        if isinstance(holder, list) and name == "extend":
            items = self._run.access.items(given[0]) if given else UNKNOWN
            holder.extend([OPTIONAL] if isinstance(items, Unknown) else items)
            return None
        if isinstance(holder, dict) and name == "update" and not given:
            return None
        if isinstance(holder, Entries) and name == "update" and isinstance(given[0], dict):
            holder.spread(given[0], frozenset())
            return None
        try:
            return getattr(holder, name)(*given)
        except (TypeError, ValueError, KeyError, IndexError):
            return UNKNOWN

    def _read(self, holder: Value, name: str, given: list[Value]) -> Value:
        if isinstance(holder, dict) and name == "get":
            return self._get(holder, given)
        if isinstance(holder, dict) and name in ("items", "keys", "values"):
            return list(getattr(holder, name)())
        try:
            return getattr(holder, name)(*given)
        except (TypeError, ValueError):
            return UNKNOWN

    def _get(self, holder: dict[Value, Value], given: list[Value]) -> Value:
        key, default = (*given, None, None)[:2] if given else (None, None)
        if isinstance(key, Unknown):
            return unknown_from(key)
        if isinstance(holder, Config) and isinstance(key, str):
            self._run.trace.add(holder.key(key))
        if not is_key(key) or (key not in holder and has_open_keys(holder)):
            return UNKNOWN
        if isinstance(holder, Entries):
            self._run.trace |= holder.behind.get(key, NO_KEYS)
        value = holder.get(key, default)
        if value == "???" and isinstance(holder, Config):
            return default
        return self._run.modules.resolve(value)

    def _resolved(self, call: LibraryCall, position: int) -> Value:
        return self._run.modules.resolve(call.argument(position, ""))

    def _getattr(self, call: LibraryCall) -> Value:
        holder, name = self._resolved(call, 0), call.argument(1, "")
        if not isinstance(name, str):
            return unknown_from(holder, name)
        has = self._has(holder, name)
        if has is False and len(call.positional) > 2:
            return call.positional[2]
        if isinstance(has, Unknown) and len(call.positional) > 2:
            return unknown_from(holder)
        return self._run.access.attribute(
            holder, name, ast.Constant(value=None, lineno=getattr(call.node, "lineno", 0)), call.scope
        )

    def _hasattr(self, call: LibraryCall) -> Value:
        holder, name = self._resolved(call, 0), call.argument(1, "")
        # Who asks it of None does so before somebody sets it, such as an engine in another process.
        return self._has(holder, name) if isinstance(name, str) and holder is not None else UNKNOWN

    def _has(self, holder: Value, name: str) -> bool | Unknown:
        if isinstance(holder, Unknown):
            return unknown_from(holder)
        if isinstance(holder, Config):
            return name in holder or hasattr(dict, name)
        if isinstance(holder, Instance):
            if name in holder.attributes or holder.type.attribute(name)[0]:
                return True
            return UNKNOWN if holder.type.open_bases or holder.type.attribute("__getattr__")[0] else False
        if isinstance(holder, Class) and holder.attribute(name)[0]:
            return True
        if holder is None or isinstance(holder, (bool, int, float, str, list, dict, tuple)):
            return hasattr(holder, name)
        return UNKNOWN

    def _setattr(self, call: LibraryCall) -> Value:
        holder, name, value = (*call.positional, None, None, None)[:3]
        keys = frozenset(self._run.trace)
        if isinstance(holder, Instance) and isinstance(name, str):
            self._run.access.set_directly(holder, name, value, keys)
        elif isinstance(holder, Config) and isinstance(name, str):
            self._run.journal.touch(holder)
            holder[name] = value
        return None

    def _isinstance(self, call: LibraryCall) -> Value:
        value, kinds = self._resolved(call, 0), call.argument(1, "")
        if isinstance(value, Unknown):
            return unknown_from(value)
        results = [
            self._is_a(value, self._run.modules.resolve(kind))
            for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
        ]
        if True in results:
            return True
        return UNKNOWN if any(isinstance(one, Unknown) for one in results) else False

    def _is_a(self, value: Value, kind: Value) -> bool | Unknown:
        if isinstance(kind, Class):
            if isinstance(value, Instance):
                return kind in value.type.order or (UNKNOWN if value.type.open_bases else False)
            return False
        if not isinstance(kind, Unknown) or not kind.name:
            return UNKNOWN
        if kind.name in _TYPES:
            if isinstance(value, bool) and kind.name == "int":
                return True
            if isinstance(value, Config) and not isinstance(value, Options) and kind.name == "dict":
                return False
            return isinstance(value, _TYPES[kind.name])
        if kind.name == "omegaconf.ListConfig":
            return isinstance(value, list)
        # Plain values are not objects of other packages.
        return False if value is None or isinstance(value, (bool, int, float, str)) else UNKNOWN

    def _issubclass(self, call: LibraryCall) -> Value:
        kind, base = self._resolved(call, 0), self._resolved(call, 1)
        if isinstance(kind, Class) and isinstance(base, Class):
            return base in kind.order or (UNKNOWN if kind.open_bases else False)
        return UNKNOWN

    def _type(self, call: LibraryCall) -> Value:
        value = self._resolved(call, 0)
        return value.type if isinstance(value, Instance) else UNKNOWN

    def _callable(self, call: LibraryCall) -> Value:
        value = self._resolved(call, 0)
        if isinstance(value, (Function, Class, Bound, Partial, Native)):
            return True
        return False if value is None or isinstance(value, (int, str, dict, list)) else UNKNOWN

    def _map(self, call: LibraryCall) -> Value:
        items = self._run.access.items(call.argument(1, ""))
        if isinstance(items, Unknown) or len(call.positional) != 2:
            return unknown_from(items)
        return [
            self._run.calls.apply(call.positional[0], [item], {}, call.node, call.scope) for item in items
        ]


def _repeats(name: str, arguments: Sequence[Value]) -> bool:
    """Whether what a function returns has one element at least, such as the steps after earlier runs."""
    if name == "range" and len(arguments) > 1:
        return isinstance(arguments[1], int) and arguments[1] > 0
    return name in ("enumerate", "zip") and any(isinstance(one, Unknown) and one.repeats for one in arguments)
