"""Tolerances of a formula: how far rounding may move the results of a device from those in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.numerics.actor.actor_reference import SAMPLES
from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import BF16_AUTOCAST, FP32, Contract

FP64 = Contract(name="fp64", io="fp64", compute="fp64", accumulate="fp64")
CONTRACTS = {torch.float64: FP64, torch.float32: FP32, torch.bfloat16: BF16_AUTOCAST}
"""The precision contract of tensors with that dtype."""

Formula = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """Exact tensors, and the tolerance of the distance (norm) between each and a tensor with that dtype."""

    dtype: torch.dtype
    exact: Sequence[torch.Tensor]
    tolerances: Sequence[float]

    def budgets(self, actual: Sequence[torch.Tensor]) -> list[float]:
        """The distance of each tensor divided by its tolerance; NaN when the tensor is not finite."""
        return [
            _budget(float((tensor.detach().cpu().double() - exact).norm()), tolerance)
            for tensor, exact, tolerance in zip(actual, self.exact, self.tolerances, strict=True)
        ]

    def require(self, actual: Sequence[torch.Tensor]) -> None:
        """AssertionError if a tensor is outside its tolerance."""
        budgets = self.budgets(actual)
        # Written with `all`, because NaN must fail.
        assert all(budget <= 1 for budget in budgets), f"off by more than {self.dtype} permits: {budgets}"


def permitted(formula: Formula, dtype: torch.dtype) -> Permitted:
    """The exact results of a formula and their tolerances, as in the check `actor`.

    A tolerance is the largest distance of perturbed runs of the formula, times the contract's safety factor,
    plus one rounding to the dtype. In float64 it is doubled, because the formula itself also rounds. formula:
    returns the same float64 tensors on the CPU at every call.
    """
    contract = CONTRACTS[dtype]
    exact = [tensor.detach() for tensor in formula()]
    runs = []
    for seed in range(SAMPLES):
        with stochastic_arithmetic.perturbed(contract, seed):
            runs.append([tensor.detach() for tensor in formula()])
    return Permitted(dtype=dtype, exact=exact, tolerances=tolerances(exact, runs, contract, dtype))


def tolerances(
    exact: Sequence[torch.Tensor],
    runs: Sequence[Sequence[torch.Tensor]],
    contract: Contract,
    dtype: torch.dtype,
) -> list[float]:
    """The tolerance of each tensor, from runs that are perturbed within the contract."""
    unit, both = torch.finfo(dtype).eps / 2, 2 if dtype is torch.float64 else 1
    return [
        both
        * (
            contract.safety * max(float((run[index] - tensor).norm()) for run in runs)
            + unit * float(tensor.norm())
        )
        for index, tensor in enumerate(exact)
    ]


def _budget(distance: float, tolerance: float) -> float:
    """A tolerance of zero requires a distance of zero."""
    return distance / tolerance if tolerance else float("inf") if distance else 0.0
