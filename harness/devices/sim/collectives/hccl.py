"""The `hccl` backend of torch.distributed, with gloo underneath, on the host memory of device tensors.

HCCL itself is not exercised. What is: everything above it, from init_process_group to DDP and FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.devices.sim.collectives import reductions
from harness.devices.sim.operators.aten_kernels import DEVICE_KEY
from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine
from harness.devices.sim.operators.schema_plan import OperatorPlan, plan_of
from harness.devices.sim.operators.torch_internals import (
    GLOO_KNOWS_ALL_KINDS,
    HOST,
    overload,
    override,
    schemas,
)

BACKEND = "hccl"
# Waiting for a send whose receive is not posted yet could last for ever, so these are not waited for.
_WRITE_NOTHING = frozenset({"barrier", "recv_", "recv_any_source_", "send"})

# The dispatcher keeps what is registered for the life of the process.
_libraries: list[Any] = []


def install(machine: Machine) -> int:
    """Make `hccl` a gloo group and run collectives of device tensors on their host memory.

    Number of collectives that are covered; 0 where torch has no distributed package.
    """
    import torch.distributed as dist

    if _libraries or not dist.is_available():
        return 0
    _register_backend(dist)
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    covered = 0
    for name, schema in schemas("c10d"):
        operator = overload("c10d", name)
        if operator is None or name == "monitored_barrier_":
            continue
        arguments = [argument.name for argument in schema.arguments]
        old = "reduce_op" in arguments and not GLOO_KNOWS_ALL_KINDS
        compute = reductions.complete(operator, arguments) if old else operator
        plan = plan_of(operator, schema)
        if name not in _WRITE_NOTHING:
            # Schemas of collectives do not say so.
            plan = replace(plan, mutable=((0, arguments[0]),))
        override(library, name, _collective(compute, plan, machine), DEVICE_KEY)
        covered += 1
    return covered


def _register_backend(dist: Any) -> None:
    backend = dist.Backend
    if hasattr(backend, BACKEND.upper()):
        backend._plugins[BACKEND.upper()] = backend._BackendPlugin(_gloo_group, False)  # noqa: SLF001
    else:
        backend.register_backend(BACKEND, _gloo_group, devices=[DEVICE_TYPE])
    dist.ProcessGroupGloo.get_hccl_comm_name = _communicator_name
    backend.backend_capability[BACKEND] = [DEVICE_TYPE, "cpu"]
    backend.default_device_backend_map[DEVICE_TYPE] = BACKEND
    backend.backend_type_map[BACKEND] = dist.ProcessGroup.BackendType.CUSTOM


def _communicator_name(group: Any, _rank: int = 0, *_options: Any) -> str:
    """HCCL's kernels for mixtures of experts ask a group for the name of its communicator."""
    return f"npu_sim_group_{id(group)}"


def _gloo_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _collective(operator: Callable[..., Any], plan: OperatorPlan, machine: Machine) -> Callable[..., Any]:
    interceptors = machine.interceptors

    def finished(*args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        if plan.mutable:
            # Faults strike what has arrived.
            reductions.finish(result)
        return result

    def run(*args: Any, **kwargs: Any) -> Any:
        originals: list[tuple[torch.Tensor, torch.Tensor]] = []

        def to_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if value.is_cpu:
                    return value
                host = machine.alias(value)
                # gloo refuses tensors without dimensions, which HCCL accepts.
                host = host.view(1) if host.dim() == 0 else host
                originals.append((host, value))
                return host
            if isinstance(value, (list, tuple)):
                return [to_host(entry) for entry in value]
            return HOST if isinstance(value, torch.device) else value

        hosts, named = [*map(to_host, args)], {name: to_host(value) for name, value in kwargs.items()}
        if not interceptors:
            return _to_device(operator(*hosts, **named), originals)
        return _to_device(interceptors[0](plan, finished, hosts, named), originals)

    return run


def _to_device(value: Any, originals: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(value, torch.Tensor):
        for host, original in originals:
            if host is value or (
                host.data_ptr() == value.data_ptr()
                and host.shape == value.shape
                and host.dtype == value.dtype
            ):
                return original
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_to_device(entry, originals) for entry in value)
    return value
