"""Imitates another bf16 implementation of a model: every bf16 result is perturbed and rounded again."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.numerics.arithmetic.precision_contract import FORMATS
from harness.numerics.arithmetic.stochastic_arithmetic import EXACT, HIDDEN


class AnotherRounding(TorchDispatchMode):  # type: ignore[misc]
    """Perturbs each computed bf16 result at random by up to one unit roundoff, and rounds it again.

    Implementations fuse different operations, so they round different intermediate results, but none of them
    more than twice. This mode rounds every result twice (Monte Carlo arithmetic, as in
    `stochastic_arithmetic`). Results that the model computes in fp32 (norms, softmax) are not changed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.unit = FORMATS["bf16"].unit_roundoff

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and perturb its first result."""
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
