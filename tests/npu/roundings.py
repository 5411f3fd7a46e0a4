"""How far an operator may be from its formula in float64: as far as roundings take the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from harness.numerics import stochastic
from harness.numerics.contract import BF16_AUTOCAST, FORMATS, FP32, Contract

FP64 = Contract(name="fp64", io="fp64", compute="fp64", accumulate="fp64")
CONTRACTS = {torch.float64: FP64, torch.float32: FP32, torch.bfloat16: BF16_AUTOCAST}
"""What an operator promises whose tensors have that dtype."""

SAMPLES = 4

Formula = Callable[[], Sequence[torch.Tensor]]


def budgets(actual: Sequence[torch.Tensor], formula: Formula, dtype: torch.dtype) -> list[float]:
    """Distance of each tensor from what the formula gives, over the distance that the dtype's contract permits.

    Permitted is what `actor` permits a tensor: the farthest that perturbed runs of the formula go, times the
    contract's safety, and one rounding to the dtype. In float64 the formula itself is as far off, too.
    """
    contract = CONTRACTS[dtype]
    exact = [tensor.detach() for tensor in formula()]
    scatter = [0.0] * len(exact)
    for seed in range(SAMPLES):
        mode = stochastic.perturbed(contract, seed)
        with mode:
            moved = [tensor.detach() for tensor in formula()]
        found = (float((a - b).norm()) for a, b in zip(moved, exact, strict=True))
        scatter = [max(pair) for pair in zip(scatter, found, strict=True)]
    unit, both = FORMATS[contract.io].unit_roundoff, 2 if dtype is torch.float64 else 1
    return [
        _share(
            float((got.detach().cpu().double() - wanted).norm()),
            both * (contract.safety * far + unit * float(wanted.norm())),
        )
        for got, wanted, far in zip(actual, exact, scatter, strict=True)
    ]


def _share(distance: float, permitted: float) -> float:
    """What is exactly zero must be so."""
    return distance / permitted if permitted else float("inf") if distance else 0.0


def require_close(actual: Sequence[torch.Tensor], formula: Formula, dtype: torch.dtype) -> None:
    """AssertionError with the largest share of what is permitted."""
    found = budgets(actual, formula, dtype)
    # Not "any above": NaN is above nothing.
    assert all(share <= 1 for share in found), (
        f"{max(found, key=abs):.3g} times what {dtype} permits: {found}"
    )
