"""The `hccl` backend of torch.distributed: gloo on the host memory of device tensors.

HCCL itself does not run. The code that calls it does, from init_process_group to DDP and FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from harness.devices.sim.collectives import reductions
from harness.devices.sim.operators.aten_kernels import DEVICE_KEY
from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine
from harness.devices.sim.operators.schema_plan import OperatorPlan, plan_of
from harness.devices.sim.operators.torch_internals import (
    GLOO_HAS_ALL_REDUCTIONS,
    HOST,
    overload,
    override,
    schemas,
)

BACKEND = "hccl"
# These are not waited for, because waiting for a send before the other rank posts the receive would deadlock.
# A fault therefore cannot change what they receive.
_NOT_WAITED_FOR = frozenset({"barrier", "recv_", "recv_any_source_", "send"})

# Kernels stay registered only as long as their library object exists.
_libraries: list[Any] = []


def install(machine: Machine) -> None:
    """Register `hccl` as a backend that uses gloo, and run collectives on the host memory of device tensors.

    Does nothing if torch was built without torch.distributed.
    """
    if _libraries or not dist.is_available():
        return
    _register_backend()
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    for name, schema in schemas("c10d"):
        operator = overload("c10d", name)
        if operator is None or name == "monitored_barrier_":
            continue
        arguments = [argument.name for argument in schema.arguments]
        lacks_reductions = "reduce_op" in arguments and not GLOO_HAS_ALL_REDUCTIONS
        compute = reductions.add_reductions(operator, arguments) if lacks_reductions else operator
        plan = plan_of(operator, schema)
        if name not in _NOT_WAITED_FOR:
            # The schemas of collectives do not declare that the first argument is written.
            plan = replace(plan, mutable=((0, arguments[0]),))
        override(library, name, _collective(compute, plan, machine), DEVICE_KEY)


def _register_backend() -> None:
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
    """torch_npu's MoE operators ask a process group for the name of its HCCL communicator."""
    return f"npu_sim_group_{id(group)}"


def _gloo_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _collective(operator: Callable[..., Any], plan: OperatorPlan, machine: Machine) -> Callable[..., Any]:
    interceptors = machine.interceptors

    def compute(*args: Any, **kwargs: Any) -> Any:
        result = operator(*args, **kwargs)
        if plan.mutable:
            # A fault changes the received tensors, so they must have arrived.
            reductions.wait(result)
        return result

    def run(*args: Any, **kwargs: Any) -> Any:
        originals: list[tuple[torch.Tensor, torch.Tensor]] = []

        def to_host(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if value.is_cpu:
                    return value
                host = machine.alias(value)
                # HCCL accepts tensors without dimensions, gloo does not.
                host = host.view(1) if host.dim() == 0 else host
                originals.append((host, value))
                return host
            if isinstance(value, (list, tuple)):
                return [to_host(entry) for entry in value]
            return HOST if isinstance(value, torch.device) else value

        hosts, named = [*map(to_host, args)], {name: to_host(value) for name, value in kwargs.items()}
        if not interceptors:
            return _to_device(operator(*hosts, **named), originals)
        return _to_device(interceptors[0](plan, compute, hosts, named), originals)

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
