"""What functions of Python and of other packages return, as far as verl's checks rest on it."""

from __future__ import annotations

import ast
import builtins
import copy
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.expressions import has_open_keys, is_open
from harness.compat.lint.dry_run.parallel_layout import device_mesh, megatron_groups
from harness.compat.lint.dry_run.values import (
    UNKNOWN,
    Bound,
    Class,
    Config,
    Function,
    Instance,
    Lazy,
    LibraryCall,
    Native,
    Partial,
    Scope,
    Unknown,
    Value,
    has_unknown,
    sources_of,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.interpreter import Interpreter

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


@dataclass(frozen=True, eq=False, kw_only=True)
class FieldDefault:
    """`dataclasses.field`. factory: makes the default value, or None."""

    value: Value
    factory: Value


class Libraries:
    """Functions that are not verl's."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._run = interpreter
        self._functions: Mapping[str, Callable[[LibraryCall], Value]] = {
            "builtins.getattr": self._getattr,
            "builtins.hasattr": self._hasattr,
            "builtins.setattr": self._setattr,
            "object.__setattr__": self._setattr,
            "builtins.isinstance": self._isinstance,
            "builtins.issubclass": self._issubclass,
            "builtins.type": self._type,
            "builtins.callable": self._callable,
            "builtins.map": self._map,
            "omegaconf.OmegaConf.to_container": lambda call: _plain(call.argument(0, "cfg")),
            "omegaconf.OmegaConf.to_object": lambda call: _plain(call.argument(0, "cfg")),
            "omegaconf.OmegaConf.create": lambda call: _as_config(call.argument(0, "obj", {})),
            "omegaconf.OmegaConf.select": self._select,
            "omegaconf.OmegaConf.is_config": lambda call: isinstance(call.argument(0, "obj"), Config),
            "omegaconf.OmegaConf.merge": self._merge,
            "hydra.utils.instantiate": self._instantiate,
            "hydra.utils.get_class": self._class_named,
            "dataclasses.field": lambda call: FieldDefault(
                value=call.named.get("default", UNKNOWN), factory=call.named.get("default_factory")
            ),
            "dataclasses.is_dataclass": self._is_dataclass,
            "dataclasses.fields": self._fields,
            "dataclasses.asdict": self._asdict,
            "functools.partial": lambda call: Partial(
                function=call.positional[0], arguments=tuple(call.positional[1:]), named=call.named
            ),
            "copy.deepcopy": lambda call: self._copied(call.argument(0, "x")),
            "copy.copy": lambda call: self._copied(call.argument(0, "x")),
            "os.getenv": lambda call: self.environment(call.argument(0, "key"), call.argument(1, "default")),
            "os.environ.get": lambda call: self.environment(
                call.argument(0, "key"), call.argument(1, "default")
            ),
            "ray.remote": self._remote,
            "ray.get": lambda call: call.argument(0, "object_refs"),
            "ray.is_initialized": lambda _call: False,
            "asyncio.run": lambda call: call.argument(0, "main"),
            "torch.cuda.is_available": lambda _call: self._run.surroundings.device == "cuda",
            "torch.npu.is_available": lambda _call: self._run.surroundings.device == "npu",
            "torch.distributed.get_world_size": self._world_size,
            "torch.distributed.device_mesh.init_device_mesh": lambda call: device_mesh(call, self._run),
            "megatron.core.parallel_state.initialize_model_parallel": (
                lambda call: megatron_groups(call, self._run)
            ),
            "megatron.core.parallel_state.get_data_parallel_world_size": self._data_parallel,
            "shutil.which": self._which,
            "torch.distributed.is_initialized": lambda _call: UNKNOWN,
            "transformers.AutoConfig.from_pretrained": lambda _call: self._external(
                {**self._run.surroundings.model}
            ),
            "collections.defaultdict": lambda _call: UNKNOWN,
            "math.ceil": lambda call: self._math(math.ceil, call),
            "math.floor": lambda call: self._math(math.floor, call),
            "math.gcd": lambda call: self._math(math.gcd, call),
            "math.prod": lambda call: self._math(math.prod, call),
            "numpy.prod": lambda call: self._math(math.prod, call),
        }

    def builtin(self, name: str) -> Value:
        """A builtin name."""
        if name == "__name__":
            return "imported"
        return Unknown(name=name if name in _TYPES or name == "object" else f"builtins.{name}")

    def call(
        self, callee: Unknown, positional: list[Value], named: Named, node: ast.AST, scope: Scope
    ) -> Value:
        """Call something that is not verl's."""
        call = LibraryCall(positional=positional, named=named, node=node, scope=scope)
        function = self._functions.get(callee.name)
        if function is not None:
            return function(call)
        name = callee.name.removeprefix("builtins.")
        if name in _PURE:
            return self._pure(name, call)
        config = named.get("config")
        if isinstance(config, Instance) and not config.type.path:
            # A model of another package, made from its configuration.
            return self._external({"config": config})
        if callee.name.startswith("ray.remote"):
            return positional[0] if positional else UNKNOWN
        return Unknown(sources=sources_of(callee, *positional, *named.values()))

    def environment(self, name: Value, default: Value) -> Value:
        """An environment variable. Those that the job does not set may be set outside."""
        if name == "WORLD_SIZE" and self._run.surroundings.world_size:
            return str(self._run.world_size())
        if not isinstance(name, str):
            return UNKNOWN
        # Variables of verl are settings of the job: one that it does not set has its default.
        unset = default if name.startswith("VERL_") else UNKNOWN
        return self._run.surroundings.variables.get(name, unset)

    def _pure(self, name: str, call: LibraryCall) -> Value:
        arguments = [
            self._run.expressions.items(one) if isinstance(one, Class) else one for one in call.positional
        ]
        unknown = Unknown(sources=sources_of(*arguments, *call.named.values()))
        first = arguments[0] if arguments else None
        if name == "len" and isinstance(first, (list, tuple, dict)):
            return UNKNOWN if is_open(first) else len(first)
        if name == "str" and isinstance(first, Instance):
            return self._run.expressions.text(first, call.node, call.scope)
        if name == "bool" and arguments:
            return self._run.expressions.truth_of(first)
        if name in ("any", "all") and isinstance(first, (list, tuple)):
            truths = [self._run.expressions.truth_of(one) for one in first]
            if (name == "any") in truths:
                return name == "any"
            return (
                Unknown(sources=sources_of(*truths))
                if any(isinstance(one, Unknown) for one in truths)
                else name == "all"
            )
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
            return Unknown(sources=sources_of(*given))
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
            items = self._run.expressions.items(given[0]) if given else UNKNOWN
            holder.extend([Unknown(optional=True)] if isinstance(items, Unknown) else items)
            return None
        if isinstance(holder, dict) and name == "update" and not given:
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
            return Unknown(sources=key.sources)
        if isinstance(holder, Config) and isinstance(key, str):
            self._run.trace.add(holder.key(key))
        if isinstance(key, (dict, list, set)) or (key not in holder and has_open_keys(holder)):
            return UNKNOWN
        value = holder.get(key, default)
        if value == "???" and isinstance(holder, Config):
            return default
        return self._run.resolve(value)

    def _getattr(self, call: LibraryCall) -> Value:
        holder, name = self._run.resolve(call.argument(0, "")), call.argument(1, "")
        if not isinstance(name, str):
            return Unknown(sources=sources_of(holder, name))
        has = self._has(holder, name)
        if has is False and len(call.positional) > 2:
            return call.positional[2]
        if isinstance(has, Unknown) and len(call.positional) > 2:
            return Unknown(sources=sources_of(holder))
        return self._run.expressions.attribute(
            holder, name, ast.Constant(value=None, lineno=getattr(call.node, "lineno", 0)), call.scope
        )

    def _hasattr(self, call: LibraryCall) -> Value:
        name = call.argument(1, "")
        return self._has(self._run.resolve(call.argument(0, "")), name) if isinstance(name, str) else UNKNOWN

    def _has(self, holder: Value, name: str) -> bool | Unknown:
        if isinstance(holder, Unknown):
            return Unknown(sources=holder.sources)
        if isinstance(holder, Config):
            return name in holder or hasattr(dict, name)
        if isinstance(holder, Instance):
            if name in holder.attributes or holder.type.attribute(name)[0]:
                return True
            return False if holder.type.is_dataclass and not holder.type.open_bases else UNKNOWN
        if isinstance(holder, Class) and holder.attribute(name)[0]:
            return True
        if holder is None or isinstance(holder, (bool, int, float, str, list, dict, tuple)):
            return hasattr(holder, name)
        return UNKNOWN

    def _setattr(self, call: LibraryCall) -> Value:
        holder, name, value = (*call.positional, None, None, None)[:3]
        keys = frozenset(self._run.trace)
        if isinstance(holder, Instance) and isinstance(name, str):
            self._run.expressions.set_directly(holder, name, value, keys)
        elif isinstance(holder, Config) and isinstance(name, str):
            self._run.journal.touch(holder)
            holder[name] = value
        return None

    def _isinstance(self, call: LibraryCall) -> Value:
        value, kinds = self._run.resolve(call.argument(0, "")), call.argument(1, "")
        if isinstance(value, Unknown):
            return Unknown(sources=value.sources)
        results = [
            self._is_a(value, self._run.resolve(kind))
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
            if isinstance(value, Config) and kind.name == "dict":
                return False
            return isinstance(value, _TYPES[kind.name])
        if kind.name == "omegaconf.ListConfig":
            return isinstance(value, list)
        # Plain values are not objects of other packages.
        return False if value is None or isinstance(value, (bool, int, float, str)) else UNKNOWN

    def _issubclass(self, call: LibraryCall) -> Value:
        kind, base = self._run.resolve(call.argument(0, "")), self._run.resolve(call.argument(1, ""))
        if isinstance(kind, Class) and isinstance(base, Class):
            return base in kind.order or (UNKNOWN if kind.open_bases else False)
        return UNKNOWN

    def _type(self, call: LibraryCall) -> Value:
        value = self._run.resolve(call.argument(0, ""))
        return value.type if isinstance(value, Instance) else UNKNOWN

    def _callable(self, call: LibraryCall) -> Value:
        value = self._run.resolve(call.argument(0, ""))
        if isinstance(value, (Function, Class, Bound, Partial, Native)):
            return True
        return False if value is None or isinstance(value, (int, str, dict, list)) else UNKNOWN

    def _map(self, call: LibraryCall) -> Value:
        items = self._run.expressions.items(call.argument(1, ""))
        if isinstance(items, Unknown) or len(call.positional) != 2:
            return Unknown(sources=sources_of(items))
        return [
            self._run.calls.apply(call.positional[0], [item], {}, call.node, call.scope) for item in items
        ]

    def _select(self, call: LibraryCall) -> Value:
        value, path = call.argument(0, "cfg"), call.argument(1, "key")
        if not isinstance(path, str):
            return UNKNOWN
        for part in path.split("."):
            if isinstance(value, Unknown):
                return Unknown(sources=value.sources)
            if not isinstance(value, dict) or part not in value:
                return call.named.get("default")
            if isinstance(value, Config):
                self._run.trace.add(value.key(part))
            value = value[part]
        return call.named.get("default") if value is None or value == "???" else value

    def _merge(self, call: LibraryCall) -> Value:
        merged: Value = call.positional[0] if call.positional else UNKNOWN
        for other in call.positional[1:]:
            merged = _merged(merged, other)
        return merged

    def _instantiate(self, call: LibraryCall) -> Value:
        config = call.argument(0, "config")
        return self.instantiated(config, call.node, call.scope)

    def instantiated(self, config: Value, node: ast.AST, scope: Scope) -> Value:
        """`hydra.utils.instantiate`: objects of the classes that `_target_` names, the inner ones first."""
        if isinstance(config, list):
            return [self.instantiated(one, node, scope) for one in config]
        if not isinstance(config, dict):
            return config
        target = config.get("_target_")
        values = {
            name: self.instantiated(value, node, scope)
            for name, value in config.items()
            if name not in ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")
        }
        if not isinstance(target, str) or not target:
            return Config(values, config.path) if isinstance(config, Config) else values
        kind = self._named(target)
        return self._made(kind, config, values, node, scope)

    def _made(
        self, kind: Value, config: Mapping[str, Value], values: Named, node: ast.AST, scope: Scope
    ) -> Value:
        if not isinstance(kind, (Class, Function)):
            return UNKNOWN
        given = dict(values)
        if isinstance(kind, Class) and "_target_" in kind.dataclass_fields():
            given["_target_"] = config["_target_"]
        given.pop("_target_", None)
        keys: dict[int | str, frozenset[str]] = {}
        if isinstance(config, Config):
            keys = {name: frozenset([config.key(name)]) for name in given}
        if isinstance(kind, Class):
            return self._run.calls.construct(kind, [], given, node, scope, keys)
        return self._run.calls.apply(kind, [], given, node, scope)

    def _named(self, dotted: str) -> Value:
        module, _, name = dotted.rpartition(".")
        path = self._run.module_path(module)
        return self._run.resolve(Lazy(path=path, name=name)) if path else Unknown(name=dotted)

    def _class_named(self, call: LibraryCall) -> Value:
        dotted = call.argument(0, "path")
        return self._named(dotted) if isinstance(dotted, str) else UNKNOWN

    def _is_dataclass(self, call: LibraryCall) -> Value:
        value = self._run.resolve(call.argument(0, "obj"))
        kind = value.type if isinstance(value, Instance) else value
        return kind.is_dataclass if isinstance(kind, Class) else UNKNOWN

    def _fields(self, call: LibraryCall) -> Value:
        value = self._run.resolve(call.argument(0, "class_or_instance"))
        kind = value.type if isinstance(value, Instance) else value
        if not isinstance(kind, Class):
            return UNKNOWN
        return [Config({"name": name, "type": UNKNOWN}) for name in kind.dataclass_fields()]

    def _asdict(self, call: LibraryCall) -> Value:
        value = call.argument(0, "obj")
        return _plain(value.attributes) if isinstance(value, Instance) else UNKNOWN

    def _copied(self, value: Value) -> Value:
        if isinstance(value, Config):
            return Config({name: self._copied(one) for name, one in value.items()}, value.path)
        if isinstance(value, dict):
            return {name: self._copied(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._copied(one) for one in value]
        if isinstance(value, Instance):
            attributes = {name: self._copied(one) for name, one in value.attributes.items()}
            return Instance(type=value.type, attributes=attributes, keys=dict(value.keys))
        return copy.copy(value) if isinstance(value, set) else value

    def _remote(self, call: LibraryCall) -> Value:
        if call.positional:
            return call.positional[0]
        return Native(name="ray.remote", compute=lambda given, _named: given[0] if given else UNKNOWN)

    def _world_size(self, call: LibraryCall) -> Value:
        if call.positional or call.named:
            return UNKNOWN
        return self._run.world_size()

    def _data_parallel(self, _call: LibraryCall) -> Value:
        return self._run.surroundings.data_parallel or UNKNOWN

    def _which(self, call: LibraryCall) -> Value:
        """The tool of a device's driver is on machines with this device only."""
        device = {"nvidia-smi": "cuda", "npu-smi": "npu"}.get(str(call.argument(0, "cmd")), "")
        if not device:
            return UNKNOWN
        return str(call.argument(0, "cmd")) if self._run.surroundings.device == device else None

    def _external(self, attributes: Named) -> Value:
        """An object of another package, of which only these attributes are known."""
        kind = Class(name="external", path="", bases=(Unknown(name="external"),), scope=Scope(None, ""))
        return Instance(type=kind, attributes=attributes)

    def _math(self, function: Callable[..., object], call: LibraryCall) -> Value:
        if any(has_unknown(one) for one in call.positional):
            return Unknown(sources=sources_of(*call.positional))
        try:
            return function(*call.positional)
        except (TypeError, ValueError, OverflowError):
            return UNKNOWN


def _plain(value: Value) -> Value:
    """A configuration as plain mappings."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _as_config(value: Value, path: str = "") -> Value:
    if isinstance(value, Config):
        return value
    if isinstance(value, dict):
        return Config({str(name): _as_config(one) for name, one in value.items()}, path)
    return value


def _merged(left: Value, right: Value) -> Value:
    if isinstance(left, dict) and isinstance(right, dict):
        path = left.path if isinstance(left, Config) else ""
        every = {**left, **right}
        for name in left.keys() & right.keys():
            every[name] = _merged(left[name], right[name])
        return Config(every, path)
    return UNKNOWN if isinstance(left, Unknown) or isinstance(right, Unknown) else right
