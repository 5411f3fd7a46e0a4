"""Runs an operator that the CPU implements, but not for the arguments that a device accepts.

Called only after the CPU kernel raised an error, so that other calls are not slowed down.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from harness.devices.sim.operators.schema_plan import Args, Kwargs, OperatorPlan

_NO_HALF = re.compile(
    r"not implemented for '(?:Half|BFloat16|ComplexHalf)'|Unsupported dtype (?:Half|BFloat16)"
    r"|Unsupported datatype for \w+: ?c10::(?:Half|BFloat16)"
    r"|Low precision dtypes not supported|(?:Half|BFloat16).*not supported|not supported.*(?:Half|BFloat16)"
)
_NEEDS_LONG = re.compile(
    r"expected scalar type Long but found Int|expected target dtype to be Long\b.*got Int"
)
_NEEDS_TENSOR = "Expected a value of type 'Tensor' for argument"
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_CANNOT_GROW = "storage that is not resizable"
_NO_HALF_TO_FLOAT = "half to float conversion is not supported"
_NO_QUOTIENT = "result type Float can't be cast to the desired output type"
_OF_SOFTMAX = frozenset({"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"})

Compute = Callable[..., Any]


def compute_otherwise(
    error: Exception, plan: OperatorPlan, compute: Compute, values: list[Any], named: dict[str, Any]
) -> Any:
    """The result of `compute` after it raised `error`, if a conversion helps. Otherwise raises `error`.

    Half types that the CPU lacks are computed in float32 and rounded. int32 indices and classes become int64.
    Python scalars become tensors where the schema has tensors.
    out= tensors whose memory is too small are replaced in `values` or `named` by tensors that can grow.
    A softmax of a half type in float32 is a conversion of its own. Integers that a number divides in place
    are truncated, as torch_npu needs for averages of ranks (its own tests of `ReduceOp.AVG`).
    """
    text = str(error)
    again = _retrying(plan, compute)
    if _NO_HALF_TO_FLOAT in text:
        return compute(values[0].float(), values[1], False, *values[3:], **named)
    if _NO_QUOTIENT in text and plan.name == "aten::div_" and not getattr(values[1], "ndim", 0):
        return values[0].copy_(torch.div(values[0], values[1], rounding_mode="trunc"))
    if _CANNOT_GROW in text and plan.mutable:
        _let_grow(plan, values, named)
        return compute(*values, **named)
    if _NEEDS_TENSOR in text:
        given = [_as_tensor(value, plan, place) for place, value in enumerate(values)]
        return compute(*given, **named)
    if _NEEDS_LONG.search(text):
        return _converted(plan, again, values, named, {torch.int32: torch.int64})
    if _NO_HALF.search(text):
        return _converted(plan, again, values, named, _WIDER)
    raise error


def _retrying(plan: OperatorPlan, compute: Compute) -> Compute:
    """`compute` that converts once more: a call may need both kinds of conversions."""

    def run(*values: Any, **named: Any) -> Any:
        try:
            return compute(*values, **named)
        except (RuntimeError, NotImplementedError) as error:
            return compute_otherwise(error, plan, compute, list(values), named)

    return run


# Operators whose CPU kernels round more than the result when they compute in a half type: weights of
# interpolations, products with alpha, and sums of gradients. With torch 2.13, errors were 1.3 to 64 units in
# the last place; a computation in float32 that is rounded once has half a unit.
_ROUNDED_TWICE = re.compile(
    r"aten::(_?upsample_\w+|grid_sampler_\w+|_?adaptive_avg_pool\dd_backward|avg_pool\dd_backward"
    r"|(reflection|replication)_pad\dd_backward|embedding_dense_backward|logit_?"
    # Several operators on a CPU, one kernel of CANN (aclnn...) in op-plugin.
    r"|slow_conv\w+|nll_loss\w*|binary_cross_entropy_with_logits|soft_margin_loss(_backward)?|smooth_l1_loss(_backward)?|huber_loss(_backward)?|logsumexp)"
)
_WITH_ALPHA = re.compile(r"aten::(sub_?|rsub)")


def _gradient_in_type(_plan: OperatorPlan, compute: Compute) -> Compute:
    """The gradient of a softmax in the type that its input had, which the CPU does not always convert to."""

    def run(grad: Any, output: Any, dim: int, dtype: torch.dtype, **named: Any) -> Any:
        if grad.dtype is dtype:
            return compute(grad, output, dim, dtype, **named)
        result = compute(grad, output, dim, grad.dtype).to(dtype)
        for out in named.values():
            return out.copy_(result)
        return result

    return run


_OF_LISTS = re.compile(r"aten::_foreach_(add|sub)_?")


def _with_alpha_of_lists(plan: OperatorPlan, compute: Compute) -> Compute:
    """`compute` of bfloat16 in float32; differences of float16 round other * alpha first.

    That is what op-plugin's own tests of _foreach_add and _foreach_sub expect of an NPU.
    """
    rounds_first = "sub" in plan.name

    def run(tensors: Any, others: Any, alpha: float = 1) -> Any:
        if alpha == 1 or not tensors:
            return compute(tensors, others)
        if rounds_first and tensors[0].dtype is torch.float16:
            return compute(tensors, [other * alpha for other in others])
        if tensors[0].dtype is torch.bfloat16:
            return _converted(plan, compute, (tensors, others), {"alpha": alpha}, _WIDER)
        return compute(tensors, others, alpha=alpha)

    return run


_COMBINED = re.compile(r"aten::_foreach_addc(mul|div)_?")


def _rounding_each_step(plan: OperatorPlan, compute: Compute) -> Compute:
    """`compute` that rounds a product or quotient of float16, then its scaled value, then the sum.

    That is what op-plugin's own tests of _foreach_addcdiv expect of an NPU.
    """
    combine = torch.mul if "mul" in plan.name else torch.div

    def run(tensors: Any, first: Any, second: Any, scalars: Any = 1, **named: Any) -> Any:
        if not tensors or tensors[0].dtype is not torch.float16 or "out" in named:
            return compute(tensors, first, second, scalars, **named)
        given = named.get("value", scalars)
        factors = given.tolist() if isinstance(given, torch.Tensor) else given
        factors = factors if isinstance(factors, (list, tuple)) else [factors] * len(tensors)
        results = [
            one + combine(two, three) * factor
            for one, two, three, factor in zip(tensors, first, second, factors, strict=True)
        ]
        if not plan.name.endswith("_"):
            return results
        for target, result in zip(tensors, results, strict=True):
            target.copy_(result)
        return None

    return run


def rounding_once(plan: OperatorPlan, compute: Compute) -> Compute:
    """`compute` in float32 for half types if the CPU kernel of this operator rounds more than the result."""
    if _OF_LISTS.fullmatch(plan.name) and plan.overload == "List":
        return _with_alpha_of_lists(plan, compute)
    if plan.name in _OF_SOFTMAX:
        return _gradient_in_type(plan, compute)
    if _COMBINED.fullmatch(plan.name):
        return _rounding_each_step(plan, compute)
    with_alpha = bool(_WITH_ALPHA.fullmatch(plan.name))
    if not (with_alpha or _ROUNDED_TWICE.fullmatch(plan.name)):
        return compute

    in_float32 = computing_in_float32(plan, compute)

    def run(*values: Any, **named: Any) -> Any:
        if with_alpha and not named and len(values) == len(plan.tensors):
            return compute(*values)
        return in_float32(*values, **named)

    return run


def computing_in_float32(plan: OperatorPlan, compute: Compute) -> Compute:
    """`compute` in float32 for half types: each result, and each gradient of one, is rounded once."""

    def run(*values: Any, **named: Any) -> Any:
        types = {dtype for value in (*values, *named.values()) for dtype in _types_of(value)}
        # With float32 among them, the type of the result is left to the CPU.
        if types & _WIDER.keys() and torch.float32 not in types:
            return _converted(plan, compute, values, named, _WIDER)
        return compute(*values, **named)

    return run


def _as_tensor(value: Any, plan: OperatorPlan, place: int) -> Any:
    """A number as a tensor without dimensions, which does not decide the type of the result."""
    if isinstance(value, (bool, int, float, complex)) and (place, False) in plan.tensors:
        return torch.scalar_tensor(value, dtype=torch.tensor(value).dtype)
    return value


def _let_grow(plan: OperatorPlan, values: list[Any], named: dict[str, Any]) -> None:
    for position, name in plan.mutable:
        place: Any = values if position < len(values) else named
        key: Any = position if position < len(values) else name
        if isinstance(place[key], torch.Tensor):
            place[key] = place[key].new_empty(0)


def _converted(
    plan: OperatorPlan, compute: Compute, values: Args, named: Kwargs, types: dict[torch.dtype, torch.dtype]
) -> Any:
    narrow = {dtype for value in (*values, *named.values()) for dtype in _types_of(value) if dtype in types}
    asked = [value for value in (*values, *named.values()) if isinstance(value, torch.dtype)]

    def wider(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return types.get(value, value)
        return _mapped(value, lambda x: x.to(types.get(x.dtype, x.dtype)))

    args, kwargs = [wider(value) for value in values], {name: wider(value) for name, value in named.items()}
    result = compute(*args, **kwargs)
    for position, name in plan.mutable:
        original = values[position] if position < len(values) else named.get(name)
        changed = args[position] if position < len(values) else kwargs.get(name)
        if isinstance(original, torch.Tensor):
            original, changed = [original], [changed]
        for target, source in zip(original or (), changed or (), strict=True):
            if target is not source:
                target.copy_(source)
    if len(narrow) != 1 or torch.int32 in narrow or torch.float32 in asked:
        return result
    (dtype,) = narrow
    back = {torch.float32: dtype, torch.complex64: torch.complex32}
    return _mapped(result, lambda x: x.to(back.get(x.dtype, x.dtype)))


def _types_of(value: Any) -> list[torch.dtype]:
    entries = value if isinstance(value, (list, tuple)) else (value,)
    return [entry.dtype for entry in entries if isinstance(entry, torch.Tensor)]


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(entry, change) for entry in value)
    return value
