"""Random inputs for comparisons of operators with formulas."""

from __future__ import annotations

from collections.abc import Iterator

import torch

Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Results on the device, and what the formula gives in float64."""


class Drawn:
    """Random inputs: float64 values for the formula, and the same values in `dtype` on the device."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def size(self, least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=self.generator))

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype).double()

    def rand(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype).double()

    def order(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator)

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(self.dtype) if x.is_floating_point() else x).npu()
