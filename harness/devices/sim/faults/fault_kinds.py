"""What each kind of fault does to one call of an operator, on CPU tensors."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from harness.devices.sim.faults.fault_spec import FaultSpec
from harness.devices.sim.operators.low_precision import accumulate_low
from harness.devices.sim.operators.schema_plan import OperatorPlan

_DEFAULT_NAN_SHARE = 1e-3
_REORDERED = frozenset({"mm", "bmm", "matmul"})
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Change = Callable[[torch.Tensor], torch.Tensor]


class FaultState(Protocol):
    """The part of an active fault that the kinds of faults use."""

    spec: FaultSpec
    memory: dict[Any, Any]
    random: random.Random


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One call of an operator, with its arguments in host memory."""

    plan: OperatorPlan
    compute: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """The correct result."""
        return self.compute(*self.args, **self.kwargs)

    def written(self) -> list[torch.Tensor]:
        """The tensors among the arguments that the operator writes."""
        tensors: list[torch.Tensor] = []
        for position, name in self.plan.mutable:
            value = self.args[position] if position < len(self.args) else self.kwargs.get(name)
            tensors.extend(_tensors(value))
        return tensors


def distort(fault: FaultState, call: KernelCall) -> Any:
    """The result of the call under the fault."""
    return _KINDS[fault.spec.kind](fault, call)


def _raise(_fault: FaultState, call: KernelCall) -> Any:
    raise RuntimeError(f"EZ9999: Inner Error! simulated aicore exception in {call.plan.name}")


def _hang(fault: FaultState, call: KernelCall) -> Any:
    if fault.spec.seconds:
        time.sleep(fault.spec.seconds)
        return call.run()
    while True:
        threading.Event().wait(3600)


def _round(fault: FaultState, call: KernelCall) -> Any:
    dtype = getattr(torch, fault.spec.dtype)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).to(x.dtype)

    if not call.written():
        # An operator that computes in low precision also reads its inputs in low precision.
        call = replace(
            call,
            args=[_mapped(value, rounded) for value in call.args],
            kwargs={name: _mapped(value, rounded) for name, value in call.kwargs.items()},
        )
    return _changed(fault, call, rounded, everywhere=True)


def _lowacc(fault: FaultState, call: KernelCall) -> Any:
    dtype = getattr(torch, fault.spec.dtype)
    if call.written():
        raise NotImplementedError(f"fault kind lowacc: {call.plan.name} writes its result in place")
    return accumulate_low(call.plan.base, call.args, call.kwargs, dtype, fault.spec.block)


def _ulp(fault: FaultState, call: KernelCall) -> Any:
    return _changed(fault, call, lambda x: _away_from_zero(x, fault.spec.ulps))


def _sign(fault: FaultState, call: KernelCall) -> Any:
    return _changed(fault, call, torch.neg)


def _scale(fault: FaultState, call: KernelCall) -> Any:
    return _changed(fault, call, lambda x: x * fault.spec.factor)


def _zero(fault: FaultState, call: KernelCall) -> Any:
    return _changed(fault, call, torch.zeros_like)


def _nan(fault: FaultState, call: KernelCall) -> Any:
    return _changed(fault, call, lambda x: torch.full_like(x, float("nan")), share=_DEFAULT_NAN_SHARE)


def _nondet(fault: FaultState, call: KernelCall) -> Any:
    # Seeded by the operating system, because two runs must differ.
    generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "big"))
    if call.plan.base in _REORDERED and call.args[0].dim() > 1 and call.args[1].dim() > 1:
        order = torch.randperm(call.args[0].shape[-1], generator=generator)
        left, right = call.args[0][..., order], call.args[1][..., order, :]
        return accumulate_low("matmul", (left, right), {}, torch.float32, fault.spec.block)

    def jittered(x: torch.Tensor) -> torch.Tensor:
        is_changed = torch.rand(x.shape, generator=generator) < 0.5
        return torch.where(is_changed, _away_from_zero(x, fault.spec.ulps), x)

    return _changed(fault, call, jittered)


def _stale(fault: FaultState, call: KernelCall) -> Any:
    written = call.written()
    if written:
        before = [value.clone() for value in written]
        result = call.run()
        for value, old in _selected(fault, list(zip(written, before, strict=True))):
            if value.shape == old.shape:
                value.copy_(old)
        return result
    result = call.run()
    entries = list(result) if isinstance(result, (list, tuple)) else [result]
    indices = _selected(fault, [index for index, x in enumerate(entries) if isinstance(x, torch.Tensor)])
    for index in indices:
        now = entries[index]
        key = (call.plan.name, call.plan.overload, index, now.shape, now.dtype)
        entries[index] = fault.memory.get(key, now)
        fault.memory[key] = now.clone()
    return type(result)(entries) if isinstance(result, (list, tuple)) else entries[0]


def _changed(
    fault: FaultState, call: KernelCall, change: Change, *, everywhere: bool = False, share: float = 1.0
) -> Any:
    """Run the call, then change those results that the fault selects."""
    if fault.spec.elements is not None:
        share = fault.spec.elements

    def altered(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        return change(x) if share >= 1.0 else _partly(fault, x, change(x), share)

    written = call.written()
    result = call.run()
    if written:
        for value in written if everywhere else _selected(fault, written):
            value.copy_(altered(value))
        return result
    if isinstance(result, torch.Tensor):
        return altered(result)
    if not isinstance(result, (list, tuple)):
        return result
    hit = range(len(result)) if everywhere else _selected(fault, list(range(len(result))))
    return type(result)(
        altered(value) if index in hit and isinstance(value, torch.Tensor) else value
        for index, value in enumerate(result)
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument, which is a tensor, None, or a list that can contain lists."""
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif value is not None:
        yield value


def _selected(fault: FaultState, entries: list[Any]) -> list[Any]:
    """The entry with the index `output` of the fault, all entries for -1."""
    output = fault.spec.output
    return entries if output < 0 else entries[output : output + 1]


def _partly(fault: FaultState, x: torch.Tensor, changed: torch.Tensor, share: float) -> torch.Tensor:
    count = max(1, round(share * x.numel()))
    is_changed = torch.zeros(x.numel(), dtype=torch.bool)
    is_changed[fault.random.sample(range(x.numel()), count)] = True
    return torch.where(is_changed.view(x.shape), changed, x)


def _mapped(value: Any, change: Change) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(entry, change) for entry in value)
    return value


def _away_from_zero(x: torch.Tensor, ulps: int) -> torch.Tensor:
    """Moves finite elements other than zero away from zero by `ulps` representable numbers."""
    bits = x.contiguous().view(_INTEGER_OF_SIZE[x.element_size()])
    return torch.where(torch.isfinite(x) & (x != 0), (bits + ulps).view(x.dtype), x)


_KINDS: dict[str, Callable[[FaultState, KernelCall], Any]] = {
    "round": _round,
    "lowacc": _lowacc,
    "ulp": _ulp,
    "sign": _sign,
    "scale": _scale,
    "zero": _zero,
    "stale": _stale,
    "nan": _nan,
    "nondet": _nondet,
    "raise": _raise,
    "hang": _hang,
}
