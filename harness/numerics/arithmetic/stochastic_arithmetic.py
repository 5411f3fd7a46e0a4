"""Runs fp32 code in float64, either exactly or with each operation perturbed within the limits of a contract.

Inside `exact(...)` every cast to fp32 becomes a cast to float64. Inside `perturbed(...)` the result of each
operation is also moved, uniformly at random within the error that the contract allows for this operation on
these operands (Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997). The distances of such runs from
the exact run give the tolerance of each tensor on a device, so no tolerance is chosen by hand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.numerics.arithmetic.precision_contract import FORMATS, Contract

Bound = Callable[["StochasticMode", Any, tuple[Any, ...]], Any]

EXACT = frozenset(
    """
    _foreach_mul_ _foreach_norm _local_scalar_dense _nested_view_from_buffer _nested_view_from_jagged
    _reshape_alias _to_copy _unsafe_view abs alias all amax amin any arange argmax as_strided bincount
    bitwise_and bitwise_not cat clamp clamp_ clamp_max clamp_min clone constant_pad_nd contiguous copy_
    cumsum detach diagonal diff embedding empty empty_like empty_strided eq expand expand_as fill_ flip
    full full_like gather ge gt index index_put index_put_ index_select is_same_size isfinite isinf
    isnan item le lift_fresh logical_and logical_not logical_or lt masked_fill masked_fill_
    masked_scatter max maximum min minimum narrow narrow_copy ne neg new_empty new_full new_ones
    new_zeros nonzero one_hot ones ones_like pad permute record_stream relu repeat reshape resize_
    resolve_conj resolve_neg roll scalar_tensor scatter scatter_ scatter_add scatter_add_ select
    select_backward set_ sign slice slice_backward sort split split_with_sizes squeeze stack t tensor to
    topk transpose tril triu unbind unfold unsqueeze value_selecting_reduction_backward values view
    where zero_ zeros zeros_like
    """.split()  # noqa: SIM905 - a list of a hundred lines reads worse
)
"""Operations that move, select or compare numbers, or compute with integers, and so do not round. Those that
begin with `_foreach_` occur only in verl's gradient clipping, whose factor is one here."""

HIDDEN = 1e30
"""Attention masks contain the lowest number of the format. Larger magnitudes are masks and are not perturbed.
"""

ROUNDED = frozenset(
    ["add", "sub", "mul", "rsub", "add_", "sub_", "mul_", "lerp", "lerp_", "addcmul", "addcmul_"]
)
MATMULS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}
SUMS = frozenset(["sum", "mean", "linalg_vector_norm", "embedding_dense_backward", "index_add", "nansum"])


class StochasticMode(TorchDispatchMode):  # type: ignore[misc]
    """The mode of `exact` and `perturbed`. `unbounded` counts operations without an error bound.

    contract: the current contract; an optimizer with another contract sets it.
    casts: whether matmuls read operands that are rounded to the io format, as under autocast.
    guesses: whether the result of an operation without an error bound is perturbed like that of an elementary
        function, or not at all (`unbounded_operators`).
    """

    def __init__(
        self, contract: Contract, seed: int | None = None, *, casts: bool = False, guesses: bool = True
    ) -> None:
        super().__init__()
        self.guesses = guesses
        self.contract = contract
        self.casts = casts
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.unbounded: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation with its casts widened and its result perturbed."""
        if any(not issubclass(kind, torch.nn.Parameter) and kind is not torch.Tensor for kind in types):
            # A wrapper (jagged tensors) calls operations on its parts, which come here again.
            return NotImplemented
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        name = func.overloadpacket.__name__
        if self.casts and self.generator is not None and name in MATMULS:
            args = self._cast(name, args)
        bound = None if self.generator is None or name in EXACT else self._bound(name, args)
        result = func(*args, **kwargs)
        if bound is not None:
            self._move(result, bound)
        return result

    def _cast(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands of a matmul, rounded up or down at random."""
        unit = FORMATS[self.contract.io].unit_roundoff
        given = list(args)
        for index in MATMULS[name]:
            direction = torch.rand(given[index].shape, generator=self.generator, dtype=torch.float64) * 2 - 1
            given[index] = given[index] * (1 + unit * direction)
        return tuple(given)

    def _bound(self, name: str, args: tuple[Any, ...]) -> Any:
        """The allowed absolute error as a function of the first result. Called before an operation changes
        its operands."""
        contract, unit, ulp = self.contract, self.contract.unit, self.contract.ulp
        operands = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if not any(operand.is_floating_point() for operand in operands):
            return None
        if name in ROUNDED:
            return lambda result: unit * result.abs()
        if name in MATMULS:
            left, right = (args[index] for index in MATMULS[name])
            multiply = torch.mm if left.dim() == 2 and right.dim() == 2 else torch.matmul
            magnitude = multiply(left.abs(), right.abs()) * (self.growth(left.shape[-1]) * contract.unit_sum)
            return lambda result: magnitude + unit * result.abs()
        if name in SUMS:
            scale = self.growth(max(operands[0].numel(), 1)) * contract.unit_sum
            return lambda result: self._sum_bound(name, args, operands, result, scale)
        if name in FUNCTIONS:
            return FUNCTIONS[name](self, args)
        self.unbounded[name] += 1
        if not self.guesses:
            return None
        return lambda result: contract.function_ulp * ulp * result.abs()

    def _sum_bound(self, name: str, args: Any, operands: Any, result: Any, scale: float) -> Any:
        if name == "embedding_dense_backward":
            total = torch.ops.aten.embedding_dense_backward(operands[0].abs(), *args[1:])
            return total * self.growth(operands[1].numel()) * self.contract.unit_sum
        if name in {"sum", "mean"} and result.numel() < operands[0].numel():
            count = operands[0].numel() // max(result.numel(), 1)
            function = getattr(torch, name)
            total = function(operands[0].abs(), *args[1:]) if len(args) > 1 else function(operands[0].abs())
            return total.reshape(result.shape) * self.growth(count) * self.contract.unit_sum
        return scale * result.abs()

    def growth(self, terms: int) -> float:
        """Error bound of a sum of `terms` numbers under the current contract."""
        return self.contract.growth(terms)

    def exponential(self, exponent: Any) -> Any:
        """Relative error bound of exp at `exponent`."""
        contract = self.contract
        return (contract.exp_ulp + contract.exp_ulp_per_unit * exponent.abs()) * contract.ulp

    def _move(self, result: Any, bound: Any) -> None:
        first = result[0] if isinstance(result, (tuple, list)) else result
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return
        direction = torch.rand(first.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        # Results below the format's smallest number may become zero; a zero stays zero.
        lost = torch.where(first == 0, 0.0, self.contract.underflow)
        moved = (direction * (bound(first) + lost)).to(first.dtype)
        first.add_(torch.where(first.abs() < HIDDEN, moved, 0.0))


def _relative(ulps: Callable[[Contract], float]) -> Callable[[StochasticMode, tuple[Any, ...]], Any]:
    def bound(mode: StochasticMode, _args: tuple[Any, ...]) -> Any:
        factor = ulps(mode.contract) * mode.contract.ulp
        return lambda result: factor * result.abs()

    return bound


def _of_one(mode: StochasticMode, _args: tuple[Any, ...]) -> Any:
    """Functions with values between -1 and 1, whose error near their zeros is the error of the reduced
    argument."""
    return lambda result: torch.full_like(result, mode.contract.function_ulp * mode.contract.ulp)


def _logarithm(mode: StochasticMode, _args: tuple[Any, ...]) -> Any:
    factor = mode.contract.function_ulp * mode.contract.ulp
    return lambda result: factor * result.abs().clamp(min=1.0)


def _exp(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    relative = mode.exponential(args[0])
    return lambda result: relative * result.abs()


def _sigmoid(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    relative = mode.exponential(args[0]) + mode.contract.function_ulp * mode.contract.ulp
    return lambda result: relative * result.abs()


def _silu_backward(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    relative = mode.exponential(args[1]) + 3 * mode.contract.function_ulp * mode.contract.ulp
    magnitude = args[0].abs() * (1 + args[1].abs()) * relative
    return lambda _result: magnitude


def _softmax(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    values, axis = args[0], args[1]
    below = values - values.amax(axis, keepdim=True)
    finite = below.clamp(min=-200.0)
    relative = mode.exponential(finite) + mode.contract.function_ulp * mode.contract.ulp
    relative = relative + mode.growth(values.shape[axis]) * mode.contract.unit_sum
    return lambda result: relative * result.abs()


def _log_softmax(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    values = args[0]
    size = values.abs().amax(args[1], keepdim=True)
    return lambda result: (
        _log_sum_error(mode, size, values.shape[args[1]]) + mode.contract.unit * result.abs()
    )


def _log_sum_exp(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    axes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    keep = bool(args[2]) if len(args) > 2 else False
    size = args[0].abs().amax(tuple(axes), keepdim=keep)
    return lambda _result: _log_sum_error(mode, size, args[0].shape[axes[0]])


def _log_sum_error(mode: StochasticMode, size: Any, terms: int) -> Any:
    """Error bound of max + log(sum(exp)): the errors of the sum and the logarithm, and rounding near numbers
    of `size`."""
    contract = mode.contract
    own = contract.exp_ulp * contract.ulp + mode.growth(terms) * contract.unit_sum
    return own + contract.function_ulp * contract.ulp * (1 + math.log(terms)) + 2 * contract.unit * size


def _softmax_backward(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    gradient, output, axis = args[0], args[1], args[2]
    terms = gradient.abs() + (gradient * output).abs().sum(axis, keepdim=True)
    relative = mode.growth(output.shape[axis]) * mode.contract.unit_sum + 3 * mode.contract.unit
    magnitude = output.abs() * terms * relative
    return lambda _result: magnitude


def _log_softmax_backward(mode: StochasticMode, args: tuple[Any, ...]) -> Any:
    gradient, output, axis = args[0], args[1], args[2]
    relative = mode.exponential(output) + mode.growth(output.shape[axis]) * mode.contract.unit_sum
    magnitude = output.exp() * gradient.abs().sum(axis, keepdim=True) * relative
    return lambda result: magnitude + mode.contract.unit * result.abs()


FUNCTIONS: Mapping[str, Callable[[StochasticMode, tuple[Any, ...]], Any]] = {
    **dict.fromkeys(
        ["div", "div_", "reciprocal", "sqrt", "sqrt_", "rsqrt"], _relative(lambda c: c.function_ulp)
    ),
    # A square is one multiplication; other powers are computed with exp and log.
    "pow": _relative(lambda c: 2 * c.function_ulp),
    "addcdiv": _relative(lambda c: 2 * c.function_ulp),
    "addcdiv_": _relative(lambda c: 2 * c.function_ulp),
    **dict.fromkeys(["cos", "sin", "tanh"], _of_one),
    **dict.fromkeys(["log", "log1p"], _logarithm),
    "exp": _exp,
    **dict.fromkeys(["sigmoid", "silu"], _sigmoid),
    "silu_backward": _silu_backward,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _log_sum_exp,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
}


def exact(contract: Contract) -> StochasticMode:
    """Everything in float64, nothing perturbed."""
    return StochasticMode(contract)


def perturbed(contract: Contract, seed: int, *, casts: bool = False, guesses: bool = True) -> StochasticMode:
    """Everything in float64, with each operation perturbed by at most the error that `contract` allows."""
    return StochasticMode(contract, seed, casts=casts, guesses=guesses)
