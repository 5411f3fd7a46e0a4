"""Recomputes the matmuls of a model's linear layers in float64, from the operands of the device.

The rounding errors of a whole update in bf16 are larger than the error of one matmul with coarse partial
sums. A single
matmul is rounded only once: with bf16 operands and fp32 accumulation nearly every element has exactly one
    correct value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_measurements import Matmul
from harness.numerics.arithmetic.precision_contract import FORMATS, Array, Contract, round_to

OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT = "the output", "the gradient for the input", "the weight's gradient"


#: (lowest allowed result, highest allowed result, exact result)
Interval = tuple[Array, Array, Array]


@dataclass(kw_only=True)
class MatmulRecorder:
    """Judges every matmul of the layers that it watches. Results are rounded to the io format of the
    contract."""

    contract: Contract
    found: list[Matmul] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Judge the forward and backward matmuls of all linear layers during the block."""
        handles = []
        for name, module in model.named_modules():
            if type(module).__name__ != "Linear":
                continue
            layer = _Layer(name=name, module=module, judge=self._judge)
            handles.append(module.register_forward_pre_hook(layer.before))
            handles.append(module.register_forward_hook(layer.after))
            handles.append(module.weight.register_hook(layer.weight_gradient))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _judge(self, name: str, what: str, found: Array, legal: Callable[[Contract], Interval]) -> None:
        """Whether every element of `found` is in its interval."""
        low, high, exact = legal(self.contract)
        outside = ~((found >= low) & (found <= high))
        unit = 2 * FORMATS[self.contract.io].unit_roundoff
        distance = np.abs(found - exact) / np.maximum(unit * np.abs(exact), FORMATS[self.contract.io].flush)
        key = (name, what)
        self.found.append(
            Matmul(
                name=name,
                what=what,
                call=self.calls[key],
                elements=int(outside.size),
                wrong=int(outside.sum()),
                worst=float(distance[outside].max(initial=0.0)),
            )
        )
        self.calls[key] += 1


def interval(contract: Contract, left: Array, right: Array, bias: Array | None = None) -> Interval:
    """Lowest and highest allowed result of `left @ right + bias`, and the exact result.

    Operands are rounded to the io format. Partial sums have the unit roundoff of accumulation (`growth` of
    them, running error analysis). The result is rounded to the io format once; a bias may be added before or
    after that.
    """
    left, right = round_to(left, contract.io), round_to(right, contract.io)
    exact = left @ right
    terms = left.shape[-1]
    error = (
        contract.safety * contract.growth(terms) * contract.unit_sum * (np.abs(left) @ np.abs(right))
        + FORMATS[contract.accumulate].flush
    )
    low, high = exact - error, exact + error
    if bias is None:
        return round_to(low, contract.io), round_to(high, contract.io), exact
    bias = round_to(bias, contract.io)
    once = round_to(low + bias, contract.io), round_to(high + bias, contract.io)
    twice = tuple(round_to(round_to(side, contract.io) + bias, contract.io) for side in (low, high))
    return np.minimum(once[0], twice[0]), np.maximum(once[1], twice[1]), exact + bias


def interval_of_sum(contract: Contract, left: Array, right: Array) -> Interval:
    """Like `interval`, for the sum of `left[i].T @ right[i]` over i.

    The gradient of the weight of a layer without bias is a batched matmul (`matmul_backward`): either one
    matmul, or one for each row of the batch, rounded to the io format and summed in fp32.
    """
    parts = [interval(contract, rows.T, other) for rows, other in zip(left, right, strict=True)]
    low, high, exact = interval(contract, rows(left).T, rows(right))
    bottom, top = (np.sum([part[side] for part in parts], axis=0) for side in (0, 1))
    largest = np.sum([np.maximum(np.abs(part[0]), np.abs(part[1])) for part in parts], axis=0)
    error = contract.safety * contract.growth(len(parts)) * contract.unit_sum * largest
    bottom, top = round_to(bottom - error, contract.io), round_to(top + error, contract.io)
    return np.minimum(low, bottom), np.maximum(high, top), exact


@dataclass(kw_only=True)
class _Layer:
    """The hooks of one linear layer, with the operands of its backward matmuls."""

    name: str
    module: Any
    judge: Callable[..., None]
    layer_input: Any = None
    output_gradient: Any = None

    def before(self, _module: Any, args: Any) -> Any:
        """Make the input of the layer a tensor of its own, so that the gradient of this tensor is the layer's
        share."""
        if not args[0].requires_grad:
            return None
        return (args[0].view_as(args[0]), *args[1:])

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Judge the forward matmul and store the operands of the backward matmuls."""
        self.layer_input = batched(args[0])
        weight, bias = values(module.weight).T, None if module.bias is None else values(module.bias)
        self.judge(
            self.name,
            OUTPUT,
            rows(values(output)),
            lambda contract: interval(contract, rows(self.layer_input), weight, bias),
        )
        if output.requires_grad:
            output.register_hook(self._store_output_gradient)
        if args[0].requires_grad:
            args[0].register_hook(self._input_gradient)

    def _store_output_gradient(self, gradient: Any) -> None:
        self.output_gradient = batched(gradient)

    def _input_gradient(self, gradient: Any) -> None:
        weight = values(self.module.weight)
        self.judge(
            self.name,
            INPUT_GRADIENT,
            rows(values(gradient)),
            lambda contract: interval(contract, rows(self.output_gradient), weight),
        )

    def weight_gradient(self, gradient: Any) -> None:
        """Judge the gradient of the weight in this pass, before it is added to others."""
        self.judge(
            self.name,
            WEIGHT_GRADIENT,
            values(gradient),
            lambda contract: interval_of_sum(contract, self.output_gradient, self.layer_input),
        )


def values(tensor: Any) -> NDArray[np.float64]:
    """The numbers of a tensor, on the host."""
    return np.asarray(tensor.detach().cpu().double().numpy())


def batched(tensor: Any) -> NDArray[np.float64]:
    """The numbers of a tensor as (batch, rows, features)."""
    found = values(tensor)
    return found.reshape(-1, *found.shape[-2:]) if found.ndim > 1 else found[None, None]


def rows(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """An array as a matrix with its last dimension."""
    return array.reshape(-1, array.shape[-1])
