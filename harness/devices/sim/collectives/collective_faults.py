"""Lets faults and call counts reach collectives.

The operators of torch.distributed (c10d) call torch_npu's ProcessGroupHCCL in C++. Once there is an
interceptor, these kernels are replaced by functions that call the interceptor, and it the same process group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from harness.devices.sim.operators.dispatch import DEVICE_TYPE, Machine
from harness.devices.sim.operators.schema_plan import OperatorPlan, plan_of
from harness.devices.sim.operators.torch_internals import (
    DEVICE_KEY,
    HOST,
    call_host_kernel,
    overload,
    override,
    schemas,
)

# These are not waited for, because waiting for a send before the other rank posts the receive would deadlock.
# A fault therefore cannot change what they receive.
_NOT_WAITED_FOR = frozenset({"barrier", "recv_", "recv_any_source_", "send"})

# Kernels stay registered only as long as their library object exists.
_libraries: list[Any] = []


def intercept_collectives(machine: Machine) -> None:
    """From now on, the interceptor of `machine` is also called for collectives. Can be called repeatedly."""
    if _libraries or not dist.is_available():
        return
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)
    groups = _Groups()
    for name, schema in schemas("c10d"):
        operator = overload("c10d", name)
        arguments = [argument.name for argument in schema.arguments]
        if operator is None or name == "monitored_barrier_" or "process_group" not in arguments:
            continue
        plan = plan_of(operator, schema)
        if name not in _NOT_WAITED_FOR:
            # The schemas of collectives do not declare that the first argument is written.
            plan = replace(plan, mutable=((0, arguments[0]),))
        position = arguments.index("process_group")
        override(library, name, _collective(operator, plan, position, groups, machine), DEVICE_KEY)


class _Groups:
    """For each process group, one whose backend for the host is the first group's backend for the device.

    Replaced kernels cannot be called any more. Those for host tensors are the same, except that they use the
    group's backend for the host.
    """

    def __init__(self) -> None:
        self._twins: dict[Any, Any] = {}

    def twin(self, boxed: Any) -> Any:
        """The other group, as an argument of a c10d operator."""
        group = dist.ProcessGroup.unbox(boxed)
        backend = group._get_backend(torch.device(DEVICE_TYPE))  # noqa: SLF001 - there is no public function
        twin = self._twins.get(backend)
        if twin is None:
            twin = dist.ProcessGroup(dist.HashStore(), group.rank(), group.size())
            twin._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)  # noqa: SLF001
            twin._register_backend(HOST, dist.ProcessGroup.BackendType.CUSTOM, backend)  # noqa: SLF001
            self._twins[backend] = twin
        return twin.boxed()


def _collective(
    operator: Any, plan: OperatorPlan, group_position: int, groups: _Groups, machine: Machine
) -> Callable[..., Any]:
    interceptors = machine.interceptors

    def run(*args: Any) -> Any:
        values = list(args)
        values[group_position] = groups.twin(values[group_position])
        if not interceptors:
            return call_host_kernel(operator, *values)
        results: list[Any] = []

        def compute(*_hosts: Any) -> Any:
            results.append(call_host_kernel(operator, *values))
            if plan.mutable:
                # A fault changes the received tensors, so they must have arrived.
                _wait(results[0])
                torch.npu.synchronize()
            return results[0]

        hosts = [_to_host(value, machine) for value in values]
        interceptors[0](plan, compute, hosts, {})
        return results[0]

    return run


def _wait(result: Any) -> None:
    """Wait until a collective has finished. Its work object is the last of its results."""
    (result[-1] if isinstance(result, (list, tuple)) else result).wait()


def _to_host(value: Any, machine: Machine) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_cpu else machine.alias(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_host(entry, machine) for entry in value]
    return value
