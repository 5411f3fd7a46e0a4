"""Worker groups: verl starts its workers in other processes, here they are followed one of each kind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.compat.lint.dry_run.program_values import (
    UNKNOWN,
    Class,
    Function,
    Instance,
    Native,
    Scope,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from harness.compat.lint.dry_run.program_walk import ProgramWalk

Replacement = Callable[[list[Value], dict[str, Value]], Value]
_RAY_BASE = "verl.single_controller.ray.base."
#: The files of the functions below, which are few of those that a program calls.
_REPLACED = (
    "verl/single_controller/ray/base.py",
    "verl/workers/rollout/utils.py",
    "verl/workers/rollout/vllm_rollout/utils.py",
    "verl/utils/device.py",
    "verl/utils/profiler/performance.py",
    "verl/utils/import_utils.py",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class WorkerGroup:
    """Workers by role. size: the number of processes of each; 0 if not known. keys: what it rests on.

    process: what each process has set up, as in ProgramWalk.
    """

    workers: Mapping[str, Instance]
    size: int
    keys: frozenset[str]
    process: dict[str, Value]

    def member(self, name: str, run: ProgramWalk, node: ast.AST, scope: Scope) -> Value:
        """A method of the group, which calls the workers' method of this name."""
        if name == "world_size":
            return self.size or UNKNOWN
        if name == "spawn":
            return Native(name=name, compute=lambda _given, _named: self._spawned())

        def compute(given: list[Value], named: dict[str, Value]) -> Value:
            with _in_group(run, self):
                for worker in self.workers.values():
                    run.calls.method(worker, name, given, node, scope, named)
            return UNKNOWN

        return Native(name=name, compute=compute)

    def _spawned(self) -> Value:
        return {role: replace(self, workers={role: worker}) for role, worker in self.workers.items()}


@contextmanager
def _in_group(run: ProgramWalk, group: WorkerGroup) -> Iterator[None]:
    surroundings = run.surroundings
    before, process = (surroundings.world_size, surroundings.world_keys), run.process
    surroundings.world_size, surroundings.world_keys = group.size, group.keys
    run.process = group.process
    try:
        yield
    finally:
        surroundings.world_size, surroundings.world_keys = before
        run.process = process


def replaced_function(called: Function | Class, run: ProgramWalk) -> Replacement | None:
    """What stands in for a function or class of verl that only a cluster can run; None for others."""
    path = called.scope.path if isinstance(called, Function) else called.path
    if path not in _REPLACED:
        return None
    name = (
        called.name
        if isinstance(called, Class) or called.owner is None
        else f"{called.owner.name}.{called.name}"
    )
    dotted = f"{path.removesuffix('.py').replace('/', '.')}.{name}"
    replacements: Mapping[str, Replacement] = {
        f"{_RAY_BASE}create_colocated_worker_cls": lambda given, named: _argument(
            given, named, "class_dict", 0
        ),
        f"{_RAY_BASE}create_colocated_worker_cls_fused": lambda given, named: _argument(
            given, named, "class_dict", 0
        ),
        f"{_RAY_BASE}RayWorkerGroup": lambda given, named: _group(given, named, run),
        "verl.workers.rollout.vllm_rollout.utils.build_cli_args_from_config": lambda given, named: (
            run.start_engine(_argument(given, named, "config", 0), by_command=True)
        ),
        "verl.workers.rollout.utils.run_unvicorn": lambda _given, _named: UNKNOWN,
        "verl.workers.rollout.utils.run_uvicorn": lambda _given, _named: UNKNOWN,
        # It warns, and sets a class's `__init__` to a wrapper of it.
        "verl.utils.import_utils.deprecated": lambda _given, _named: Native(
            name="deprecated", compute=lambda given, _named: given[0] if given else UNKNOWN
        ),
        "verl.utils.device.get_device_name": lambda _given, _named: run.surroundings.device,
        "verl.utils.device.get_torch_device": lambda _given, _named: Unknown(
            name=f"torch.{run.surroundings.device}"
        ),
        "verl.utils.profiler.performance.log_gpu_memory_usage": lambda _given, _named: None,
    }
    return replacements.get(dotted)


def _argument(given: list[Value], named: Mapping[str, Value], name: str, position: int) -> Value:
    return named[name] if name in named else given[position] if position < len(given) else None


def _group(given: list[Value], named: Mapping[str, Value], run: ProgramWalk) -> Value:
    pool, classes = (
        _argument(given, named, "resource_pool", 0),
        _argument(given, named, "ray_cls_with_init", 1),
    )
    scope = Scope(None, "")
    node = ast.Pass(lineno=0, col_offset=0)
    with run.traced() as keys:
        size = run.access.attribute(pool, "world_size", ast.Constant(value=None), scope)
    if isinstance(pool, Instance):
        # The group asks Ray for what its pool does not have yet.
        run.journal.touch(pool.attributes)
        pool.attributes |= {name: UNKNOWN for name, value in pool.attributes.items() if value is None}
    known = size if isinstance(size, int) and not isinstance(size, bool) else 0
    if isinstance(classes, Instance):
        classes = {"worker": classes}
    if not isinstance(classes, dict):
        return UNKNOWN
    workers: dict[str, Instance] = {}
    group = WorkerGroup(workers=workers, size=known, keys=frozenset(keys), process={})
    with _in_group(run, group):
        for role, described in classes.items():
            made = _worker(described, run, node, scope)
            if isinstance(made, Instance):
                workers[str(role)] = made
    return group


def _worker(described: Value, run: ProgramWalk, node: ast.AST, scope: Scope) -> Value:
    """Make the worker that `RayClassWithInitArgs` describes."""
    if not isinstance(described, Instance):
        return UNKNOWN
    kind = run.modules.resolve(described.attributes.get("cls", UNKNOWN))
    positional, named = described.attributes.get("args", ()), described.attributes.get("kwargs", {})
    if isinstance(kind, Unknown) or not isinstance(positional, tuple) or not isinstance(named, dict):
        return UNKNOWN
    return run.calls.apply(kind, list(positional), dict(named), node, scope)
