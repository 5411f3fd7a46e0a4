"""A model in bf16 as it is, with every bf16 result rounded once more: another implementation's luck."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.numerics.arithmetic.precision_contract import FORMATS
from harness.numerics.arithmetic.stochastic_arithmetic import EXACT, HIDDEN


class AnotherRounding(TorchDispatchMode):  # type: ignore[misc]
    """Moves each computed bf16 result at random by up to a unit roundoff, and rounds it again.

    Implementations differ in what they fuse, so in which intermediate results they round; none rounds one
    more than twice, which is what this does to all (Monte Carlo arithmetic as in `numerics.stochastic`). What
    the model computes in fp32 (norms, softmax) it computes in fp32 here.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.unit = FORMATS["bf16"].unit_roundoff

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation, its first result moved."""
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        if (
            isinstance(first, torch.Tensor)
            and first.dtype is torch.bfloat16
            and func.overloadpacket.__name__ not in EXACT
        ):
            direction = torch.rand(first.shape, generator=self.generator) * 2 - 1
            moved = first.float() * (1 + self.unit * direction)
            first.copy_(torch.where(first.abs() < HIDDEN, moved, first.float()))
        return result
