"""Runs one operator of the simulated device on host memory.

This is the hot path, so the kernel does most of its work in one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from harness.devices.sim.operators.other_types import compute_otherwise
from harness.devices.sim.operators.schema_plan import Args, Kwargs, OperatorPlan
from harness.devices.sim.operators.torch_internals import DEVICE_KEY, HOST, has_kernel
from harness.devices.sim.operators.unsafe_data import COPIES, making_safe

DEVICE_TYPE = "npu"

TO_HOST = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"})
"""Operators that copy numbers to the host. torch_npu itself waits in another one, `_local_scalar_dense`."""

# Takes its seed on the host, but in a graph on the device.
_OTHER_IN_GRAPHS = frozenset({"npu::npu_fusion_attention_grad_v3"})

Compute = Callable[..., Any]
# Called with CPU tensors in place of the CPU kernel, to inject faults and to count calls.
Interceptor = Callable[[OperatorPlan, Compute, list[Any], dict[str, Any]], Any]


#: Records a call of a captured stream: (plan, kernel, its arguments, its keyword arguments) -> its result.
Recorder = Callable[[OperatorPlan, Callable[..., Any], Args, Kwargs], Any]


class Pending(Protocol):
    """A counter in the memory of the runtime."""

    value: int


class Checks(Protocol):
    """Wraps kernels so that they refuse what torch_npu refuses (`refusals.wheel_checks`)."""

    def checked(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel of an operator that torch_npu implements."""

    def unchecked(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel of an operator of another package, whose checks are not known."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What kernels need to know about the simulated device.

    alias: device tensor -> CPU tensor over the same memory. to_device: CPU tensor, device -> new device
    tensor. randomly: (plan, compute, generator or None, device number) -> `compute` with that device's random
    numbers. interceptors: at most one; may change between calls. devices: all devices of this process.
    current: returns the number of the current device. synchronise: waits for the device; None if waiting
    cannot fail. pending: its `value` is the number of collectives that are not done and of captures that are
    not over, in all streams. enter: waits for those of the current stream of a device, by default of the
    current one; returns what records the call there, or None. in_graph: whether the call that runs is one of
    a captured graph. checks: verifies calls by torch_npu's own code; None to compute everything.
    """

    alias: Callable[[torch.Tensor], torch.Tensor]
    to_device: Callable[[torch.Tensor, torch.device], torch.Tensor]
    randomly: Callable[[OperatorPlan, Compute, torch.Generator | None, int], Compute]
    devices: Sequence[torch.device]
    current: Callable[[], int]
    pending: Pending
    enter: Callable[[int | None], Recorder | None]
    in_graph: Callable[[], bool]
    checks: Checks | None = None
    interceptors: list[Interceptor] = field(default_factory=list)
    synchronise: Callable[[], None] | None = None


def make_kernel(plan: OperatorPlan, compute: Compute, machine: Machine) -> Callable[..., Any]:
    """The kernel of an operator: it runs `compute` on CPU aliases of the arguments and places the results."""
    alias = machine.alias
    to_device = machine.to_device
    interceptors = machine.interceptors
    tensors = plan.tensors
    by_name = plan.by_name
    mixed = plan.mixed
    # Operators outside aten may have keyword arguments on the host, for example sequence lengths.
    strict = plan.name.startswith("aten::")
    tensor_type = torch.Tensor
    only = machine.devices[0] if len(machine.devices) == 1 else None
    plain = plan.device is None and not plan.random
    fresh = plain and plan.returns == (None,) and only is not None and not plan.mutable and plan.single
    in_place = plain and plan.returns == ((0, "self"),) and only is not None
    finish = _general_finish(plan, compute, machine)
    pending = machine.pending
    enter = machine.enter

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if pending.value and (record := enter(None if only else _device_of(args, kwargs))) is not None:
            return record(plan, kernel, args, kwargs)
        values = list(args)
        count = len(values)
        foreign = None
        for position, many in tensors:
            if position >= count:
                break
            value = values[position]
            # The value can be a number although the schema says Tensor.
            if isinstance(value, tensor_type):
                if not value.is_cpu:
                    values[position] = alias(value)
                elif value.dim():
                    foreign = value
            elif many and value is not None:
                values[position] = [v if v is None or v.is_cpu else alias(v) for v in value]
                foreign = foreign if mixed else _on_host(value, foreign)
        named = kwargs
        if kwargs:
            named = dict(kwargs)
            for name, value in kwargs.items():
                if isinstance(value, tensor_type):
                    if not value.is_cpu:
                        named[name] = alias(value)
                    elif strict and value.dim():
                        foreign = value
                elif value is not None and by_name.get(name):
                    named[name] = [v if v is None or v.is_cpu else alias(v) for v in value]
        if foreign is not None and not mixed:
            _refuse_mixed(plan, foreign, (*args, *kwargs.values()))
        if not (fresh or in_place):
            return finish(args, kwargs, values, named)
        if interceptors:
            result = interceptors[0](plan, compute, values, named)
        else:
            try:
                result = compute(*values, **named)
            except (RuntimeError, NotImplementedError) as error:
                result = compute_otherwise(error, plan, compute, values, named)
        return to_device(result, only) if fresh else args[0]

    run: Callable[..., Any] = kernel
    if machine.synchronise is not None and plan.name in TO_HOST:
        run = _waiting(plan, run, machine.synchronise)
    run = as_strict(plan, run, machine)
    if plan.name == "aten::_to_copy":
        return _pinning(run)
    # Before the checks, which read the format of every tensor.
    return making_safe(run) if plan.name in COPIES else run


def as_strict(plan: OperatorPlan, run: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """`run`, after what torch_npu refuses for this operator was refused, or that nobody knows it noted."""
    if machine.checks is not None and plan.name not in TO_HOST and has_kernel(plan.qualified, DEVICE_KEY):
        wrap = machine.checks.checked if plan.of_torch_npu else machine.checks.unchecked
        wrapped = wrap(plan.qualified, run)
        if plan.name in _OTHER_IN_GRAPHS:
            return _checked_outside_graphs(wrapped, machine.checks.unchecked(plan.qualified, run), machine)
        return wrapped
    return run


def _checked_outside_graphs(
    checked: Callable[..., Any], unchecked: Callable[..., Any], machine: Machine
) -> Callable[..., Any]:
    """A kernel whose calls are verified unless they are captured: the second process captures nothing."""

    def either(*args: Any, **kwargs: Any) -> Any:
        captured = machine.pending.value and machine.enter(_device_of(args, kwargs)) is not None
        return (unchecked if captured else checked)(*args, **kwargs)

    return either


def _pinning(copy: Callable[..., Any]) -> Callable[..., Any]:
    """A copy to the host that need not wait ends in page-locked memory (torch's `_to_copy`)."""

    def run(tensor: torch.Tensor, **options: Any) -> Any:
        result = copy(tensor, **options)
        if (
            options.get("non_blocking")
            and not tensor.is_cpu
            and result.is_cpu
            and result.layout is torch.strided
        ):
            return result.pin_memory()
        return result

    return run


def _waiting(
    plan: OperatorPlan, kernel: Callable[..., Any], synchronise: Callable[[], None]
) -> Callable[..., Any]:
    """A kernel that waits for the device before it copies numbers to the host, so that errors surface."""

    def waiting(*args: Any, **kwargs: Any) -> Any:
        if plan.device is not None:
            target = _argument(plan.device, args, kwargs)
            is_to_host = target is not None and torch.device(target).type != DEVICE_TYPE
        else:
            # copy_ writes its first argument; _copy_from and _copy_from_and_resize their second.
            written = args[0 if plan.base == "copy_" else 1]
            is_to_host = written.is_cpu
        if is_to_host:
            synchronise()
        return kernel(*args, **kwargs)

    return waiting


def _on_host(tensors: Sequence[torch.Tensor | None], known: torch.Tensor | None) -> torch.Tensor | None:
    """The first tensor with dimensions in the list that is on the host, or `known`."""
    return next(
        (tensor for tensor in tensors if tensor is not None and tensor.is_cpu and tensor.dim()), known
    )


def _refuse_mixed(plan: OperatorPlan, foreign: torch.Tensor, others: Sequence[Any]) -> None:
    for tensor in _device_tensors(others):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{tensor.device} and {foreign.device}! (when running {plan.name})"
        )


def _general_finish(plan: OperatorPlan, compute: Compute, machine: Machine) -> Callable[..., Any]:
    """Runs operators with device arguments, random numbers, out= arguments or several results."""
    interceptors = machine.interceptors

    def finish(args: Any, kwargs: Kwargs, values: list[Any], named: dict[str, Any]) -> Any:
        target = _target(plan, machine, args, kwargs)
        if plan.device is not None and target is not None and target.type == DEVICE_TYPE:
            _replace(plan.device, values, named, HOST)
        run = compute
        if plan.random or (plan.draws is not None and plan.draws(args, kwargs)):
            generator = _argument(plan.generator, args, kwargs)
            index = target.index if target is not None else machine.current()
            run = machine.randomly(plan, compute, generator, index)
        if interceptors:
            result = interceptors[0](plan, run, values, named)
        else:
            try:
                result = run(*values, **named)
            except (RuntimeError, NotImplementedError) as error:
                result = compute_otherwise(error, plan, run, values, named)
        for argument in plan.mutable:
            _write_back(machine, _argument(argument, args, kwargs), _argument(argument, values, named))
        return _results(plan, machine, args, kwargs, result, target)

    return finish


def _device_of(args: Args, kwargs: Kwargs) -> int | None:
    """The number of the device on which a call runs; None without tensors on a device."""
    return next((int(tensor.get_device()) for tensor in _device_tensors((*args, *kwargs.values()))), None)


def _device_tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors on a device among arguments."""
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
                yield tensor


def _argument(argument: tuple[int, str] | None, args: Args, kwargs: Kwargs) -> Any:
    if argument is None:
        return None
    position, name = argument
    return args[position] if position < len(args) else kwargs.get(name)


def _replace(argument: tuple[int, str], values: list[Any], named: dict[str, Any], value: Any) -> None:
    position, name = argument
    if position < len(values):
        values[position] = value
    else:
        named[name] = value


def _target(plan: OperatorPlan, machine: Machine, args: Args, kwargs: Kwargs) -> torch.device | None:
    """The device of new results, with its number."""
    if plan.device is not None:
        requested = _argument(plan.device, args, kwargs)
        if requested is not None:
            requested = torch.device(requested)
            if requested.type != DEVICE_TYPE:
                return requested
            return machine.devices[machine.current() if requested.index is None else requested.index]
    if len(machine.devices) == 1:
        return machine.devices[0]
    first: torch.Tensor | None = None
    for tensor in _device_tensors((*args, *kwargs.values())):
        if first is None:
            first = tensor
        elif tensor.get_device() != first.get_device() and not plan.mixed:
            _refuse_mixed(plan, tensor, (first,))
    return machine.devices[machine.current() if first is None else first.get_device()]


def _write_back(machine: Machine, original: Any, host: Any) -> None:
    """Copy the result into an out= tensor that had no storage, or that the operator resized."""
    if not isinstance(original, torch.Tensor) or original.is_cpu or host.shape == original.shape:
        return
    # torch_npu's resize_ converts private formats with an operator; a new storage needs none.
    fresh = torch.empty(host.shape, dtype=original.dtype, device=original.device)
    original.set_(fresh.untyped_storage(), 0, fresh.shape, fresh.stride())
    machine.alias(original).copy_(host)


def _results(
    plan: OperatorPlan,
    machine: Machine,
    args: Args,
    kwargs: Kwargs,
    result: Any,
    target: torch.device | None,
) -> Any:
    if not plan.returns:
        return None
    if len(plan.returns) == 1:
        if plan.returns[0] is not None:
            return _argument(plan.returns[0], args, kwargs)
        return _to_device(machine, result, target)
    on_host = plan.on_host if not machine.in_graph() else ()
    return tuple(
        _argument(source, args, kwargs)
        if source is not None
        else _to_device(machine, value, None if position in on_host else target)
        for position, (source, value) in enumerate(zip(plan.returns, result, strict=True))
    )


def _to_device(machine: Machine, value: Any, target: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            machine.to_device(value, target) if target is not None and target.type == DEVICE_TYPE else value
        )
    if isinstance(value, (list, tuple)):
        return [_to_device(machine, entry, target) for entry in value]
    return value
