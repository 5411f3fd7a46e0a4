"""Operators that accumulate their sums in low precision, one block of terms at a time.

An accelerator that keeps partial sums in a narrow register behaves like this: the terms of a block are summed
in float32, and each partial sum is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.devices.sim.operators.schema_plan import Args, Kwargs


def accumulate_low(name: str, args: Args, kwargs: Kwargs, dtype: torch.dtype, block: int) -> Any:
    """The result of the aten operator `name`; NotImplementedError if it is not in this module."""
    low = _Low(dtype, block)
    function = _OPERATORS.get(name)
    if function is None:
        raise NotImplementedError(f"fault kind lowacc: {name} is not among {', '.join(sorted(_OPERATORS))}")
    return function(low, args, kwargs)


class _Low:
    """Sums in `dtype`, `block` terms at a time."""

    def __init__(self, dtype: torch.dtype, block: int) -> None:
        self.dtype = dtype
        self.block = block

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """left (..., m, k) @ right (..., k, n)."""
        total = None
        for start in range(0, left.shape[-1], self.block):
            stop = start + self.block
            part = (left[..., start:stop].float() @ right[..., start:stop, :].float()).to(self.dtype)
            total = part if total is None else (total + part).to(self.dtype)
        if total is None:
            return left @ right
        return total.to(left.dtype)

    def sum(self, x: torch.Tensor, dim: int, keepdim: bool) -> torch.Tensor:
        """Sum over one dimension, in x's dtype."""
        moved = x.movedim(dim, -1)
        total = moved.new_zeros(moved.shape[:-1]).to(self.dtype)
        for start in range(0, moved.shape[-1], self.block):
            part = moved[..., start : start + self.block].float().sum(-1).to(self.dtype)
            total = (total + part).to(self.dtype)
        total = total.to(x.dtype)
        return total.unsqueeze(dim) if keepdim else total


def _matmul(low: _Low, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    left, right = args[0], args[1]
    rows = left[None] if left.dim() == 1 else left
    columns = right[:, None] if right.dim() == 1 else right
    product = low.product(rows, columns)
    if right.dim() == 1:
        product = product.squeeze(-1)
    return product.squeeze(-1 if right.dim() == 1 else -2) if left.dim() == 1 else product


def _addmm(low: _Low, args: Args, kwargs: Kwargs) -> torch.Tensor:
    product = low.product(args[1], args[2])
    return (kwargs.get("beta", 1) * args[0] + kwargs.get("alpha", 1) * product).to(args[1].dtype)


def _softmax(low: _Low, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    x, dim = args[0], args[1]
    weights = (x - x.amax(dim, keepdim=True)).exp()
    return weights / low.sum(weights, dim, True)


def _log_softmax(low: _Low, args: Args, _kwargs: Kwargs) -> torch.Tensor:
    x, dim = args[0], args[1]
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - low.sum(shifted.exp(), dim, True).log()


def _logsumexp(low: _Low, args: Args, kwargs: Kwargs) -> torch.Tensor:
    x, (dim,) = args[0], args[1]
    keepdim = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    largest = x.amax(dim, keepdim=True)
    result = low.sum((x - largest).exp(), dim, True).log() + largest
    return result if keepdim else result.squeeze(dim)


def _sum(low: _Low, args: Args, kwargs: Kwargs) -> torch.Tensor:
    x: torch.Tensor = args[0]
    if kwargs.get("dtype") is not None:
        x = x.to(kwargs["dtype"])
    dims = args[1] if len(args) > 1 and args[1] else range(x.dim())
    keepdim = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    for dim in sorted((dim % max(x.dim(), 1) for dim in dims), reverse=True):
        x = low.sum(x, dim, keepdim)
    return x


def _mean(low: _Low, args: Args, kwargs: Kwargs) -> torch.Tensor:
    total = _sum(low, args, kwargs)
    return total / (args[0].numel() / max(total.numel(), 1))


_OPERATORS: Mapping[str, Callable[[_Low, Args, Kwargs], torch.Tensor]] = {
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "matmul": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "_softmax": _softmax,
    "softmax": _softmax,
    "_log_softmax": _log_softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "sum": _sum,
    "mean": _mean,
}
