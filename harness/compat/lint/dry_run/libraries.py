"""What functions of other packages return, as far as verl's checks rest on it."""

from __future__ import annotations

import ast
import copy
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.parallel_layout import device_mesh, megatron_groups
from harness.compat.lint.dry_run.program_values import (
    OPTIONAL,
    UNKNOWN,
    Class,
    Config,
    FieldDefault,
    Function,
    Instance,
    Lazy,
    LibraryCall,
    Native,
    Partial,
    Scope,
    Unknown,
    Value,
    external,
    has_unknown,
    unknown_from,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

Named = dict[str, Value]
#: The start of what stands for an environment variable among configuration keys.
VARIABLE = "env."
_MODULE_OF_USER = "importlib.module_of_user"


class Libraries:
    """Functions that are not verl's."""

    def __init__(self, run: ProgramWalk) -> None:
        self._run = run
        self._functions: Mapping[str, Callable[[LibraryCall], Value]] = {
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
            "torch.distributed.device_mesh.init_device_mesh": self._device_mesh,
            "megatron.core.parallel_state.initialize_model_parallel": self._megatron_groups,
            "megatron.core.mpu.initialize_model_parallel": self._megatron_groups,
            "megatron.core.parallel_state.get_data_parallel_world_size": self._data_parallel,
            "shutil.which": self._which,
            "torch.distributed.is_initialized": lambda _call: self._run.process.get("torch", False),
            "torch.distributed.init_process_group": lambda _call: self._set_up("torch", done=True),
            "torch.distributed.destroy_process_group": lambda _call: self._set_up("torch", done=False),
            **{
                f"megatron.core.{module}.{name}": lambda _call: self._run.process.get("megatron", False)
                for module in ("parallel_state", "mpu")
                for name in ("is_initialized", "model_parallel_is_initialized")
            },
            "transformers.AutoConfig.from_pretrained": lambda _call: self.external(
                {**self._run.surroundings.model}
            ),
            "torch.utils.data.DataLoader": self._data_loader,
            "torchdata.stateful_dataloader.StatefulDataLoader": self._data_loader,
            "tqdm.tqdm": lambda call: call.argument(0, "iterable"),
            "tqdm.auto.tqdm": lambda call: call.argument(0, "iterable"),
            "importlib.import_module": self._module,
            "importlib.util.spec_from_file_location": lambda _call: Unknown(name=_MODULE_OF_USER),
            f"{_MODULE_OF_USER}.loader.exec_module": lambda _call: self._run.modules.open_registries(),
            **{
                f"heapq.{name}": lambda call: self._in_heap(call.argument(0, "heap"))
                for name in ("heappush", "heappop", "heapify", "heapreplace", "heappushpop")
            },
            "collections.defaultdict": lambda _call: UNKNOWN,
            "json.loads": lambda call: self._math(json.loads, call),
            "json.dumps": lambda call: self._math(json.dumps, call),
            "math.ceil": lambda call: self._math(math.ceil, call),
            "math.floor": lambda call: self._math(math.floor, call),
            "math.gcd": lambda call: self._math(math.gcd, call),
            "math.prod": lambda call: self._math(math.prod, call),
            "numpy.prod": lambda call: self._math(math.prod, call),
        }

    def call(
        self, callee: Unknown, positional: list[Value], named: Named, node: ast.AST, scope: Scope
    ) -> Value:
        """Call something that is not verl's."""
        name = callee.name
        if name:
            function = self._functions.get(name) or self._run.builtins.functions.get(name)
            if function is not None:
                return function(LibraryCall(positional=positional, named=named, node=node, scope=scope))
        config = named.get("config")
        if isinstance(config, Instance) and not config.type.path:
            # A model of another package, made from its configuration.
            return self.external({"config": config})
        if name.startswith("ray.remote"):
            return positional[0] if positional else UNKNOWN
        return unknown_from(callee, *positional, *named.values())

    def environment(self, name: Value, default: Value) -> Value:
        """An environment variable. Those that the job does not set may be set outside."""
        if name == "WORLD_SIZE" and self._run.surroundings.world_size:
            return str(self._run.world_size())
        if not isinstance(name, str):
            return UNKNOWN
        if name in self._run.surroundings.variables:
            self._run.trace.add(f"{VARIABLE}{name}")
            return self._run.surroundings.variables[name]
        # These are settings of the job: one that it does not set has its default.
        return default if name.startswith(("VERL_", "VLLM_ASCEND_")) else UNKNOWN

    def _select(self, call: LibraryCall) -> Value:
        value, path = call.argument(0, "cfg"), call.argument(1, "key")
        if not isinstance(path, str):
            return UNKNOWN
        for part in path.split("."):
            if isinstance(value, Unknown):
                return unknown_from(value)
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
        path = self._run.modules.path_of(module)
        return self._run.modules.resolve(Lazy(path=path, name=name)) if path else external(dotted)

    def _class_named(self, call: LibraryCall) -> Value:
        dotted = call.argument(0, "path")
        return self._named(dotted) if isinstance(dotted, str) else UNKNOWN

    def _module(self, call: LibraryCall) -> Value:
        dotted = call.argument(0, "name")
        path = self._run.modules.path_of(dotted) if isinstance(dotted, str) else ""
        return Lazy(path=path) if path else UNKNOWN

    def _is_dataclass(self, call: LibraryCall) -> Value:
        value = self._run.modules.resolve(call.argument(0, "obj"))
        kind = value.type if isinstance(value, Instance) else value
        return kind.is_dataclass if isinstance(kind, Class) else UNKNOWN

    def _fields(self, call: LibraryCall) -> Value:
        value = self._run.modules.resolve(call.argument(0, "class_or_instance"))
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

    def _data_loader(self, call: LibraryCall) -> Value:
        """A loader, which reads a first element of its data set."""
        dataset = call.argument(0, "dataset")
        if isinstance(dataset, Instance):
            read = partial(self._run.calls.method, dataset, "__getitem__", [UNKNOWN], call.node, call.scope)
            self._run.branches.first_round(read)
        return Unknown(repeats=True)

    def _in_heap(self, heap: Value) -> Value:
        if isinstance(heap, list):
            self._run.journal.touch(heap)
            heap[:] = [OPTIONAL]
        return UNKNOWN

    def _set_up(self, what: str, *, done: bool) -> Value:
        self._run.journal.touch(self._run.process)
        self._run.process[what] = done
        return None

    def _device_mesh(self, call: LibraryCall) -> Value:
        self._set_up("torch", done=True)
        return device_mesh(call, self._run)

    def _megatron_groups(self, call: LibraryCall) -> Value:
        self._set_up("megatron", done=True)
        return megatron_groups(call, self._run)

    def _data_parallel(self, _call: LibraryCall) -> Value:
        return self._run.surroundings.data_parallel or UNKNOWN

    def _which(self, call: LibraryCall) -> Value:
        """The tool of a device's driver is on machines with this device only."""
        device = {"nvidia-smi": "cuda", "npu-smi": "npu"}.get(str(call.argument(0, "cmd")), "")
        if not device:
            return UNKNOWN
        return str(call.argument(0, "cmd")) if self._run.surroundings.device == device else None

    def external(self, attributes: Named) -> Instance:
        """An object of another package, of which only these attributes are known."""
        kind = Class(name="external", path="", bases=(Unknown(name="external"),), scope=Scope(None, ""))
        return Instance(type=kind, attributes=attributes)

    def _math(self, function: Callable[..., object], call: LibraryCall) -> Value:
        if any(has_unknown(one) for one in call.positional):
            return unknown_from(*call.positional)
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
