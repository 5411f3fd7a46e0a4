"""How far a device may be from a formula in float64: as far as roundings take the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.numerics.actor.actor_reference import SAMPLES
from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import BF16_AUTOCAST, FP32, Contract

FP64 = Contract(name="fp64", io="fp64", compute="fp64", accumulate="fp64")
CONTRACTS = {torch.float64: FP64, torch.float32: FP32, torch.bfloat16: BF16_AUTOCAST}
"""What is promised of tensors that have that dtype."""

Formula = Callable[[], Sequence[torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Permitted:
    """Exact tensors, and how far one of that dtype may be from each, as a norm."""

    dtype: torch.dtype
    exact: Sequence[torch.Tensor]
    tolerances: Sequence[float]

    def budgets(self, actual: Sequence[torch.Tensor]) -> list[float]:
        """Distance of each tensor over what is permitted; NaN where it is not finite."""
        return [
            _share(float((got.detach().cpu().double() - wanted).norm()), tolerance)
            for got, wanted, tolerance in zip(actual, self.exact, self.tolerances, strict=True)
        ]

    def require(self, actual: Sequence[torch.Tensor]) -> None:
        """AssertionError with the shares of what is permitted."""
        found = self.budgets(actual)
        # Not "any above": NaN is above nothing.
        assert all(share <= 1 for share in found), f"off by more than {self.dtype} permits: {found}"


def permitted(formula: Formula, dtype: torch.dtype) -> Permitted:
    """What the check `actor` permits a tensor: the farthest that perturbed runs of the formula go, times the
    contract's safety, and one rounding to the dtype. In float64 the formula itself is as far off, too.

    formula: gives float64 tensors on the CPU, the same at every call.
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
    """How far a tensor of that dtype may be from each exact one, given runs that are off by what the contract
    permits."""
    unit, both = torch.finfo(dtype).eps / 2, 2 if dtype is torch.float64 else 1
    return [
        both
        * (
            contract.safety * max(float((run[place] - wanted).norm()) for run in runs)
            + unit * float(wanted.norm())
        )
        for place, wanted in enumerate(exact)
    ]


def _share(distance: float, tolerance: float) -> float:
    """What is exactly zero must be so."""
    return distance / tolerance if tolerance else float("inf") if distance else 0.0
