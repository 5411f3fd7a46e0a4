"""Eight truth values in a byte, as masks and signs of torch_npu have them."""

from __future__ import annotations

import torch

_LOWEST_FIRST = 2 ** torch.arange(8, dtype=torch.int64)


def packed_bits(
    bits: torch.Tensor, *, aligned: int = 8, filler: int = 0, highest_first: bool = False
) -> torch.Tensor:
    """The bytes (uint8) of a tensor of truth values, filled up to a multiple of `aligned` bits."""
    count = bits.numel()
    filled = torch.full(((count + aligned - 1) // aligned * aligned,), filler, dtype=torch.int64)
    filled[:count] = bits.reshape(-1)
    places = _LOWEST_FIRST.flip(0) if highest_first else _LOWEST_FIRST
    return (filled.view(-1, 8) * places).sum(-1).to(torch.uint8)


def unpacked_bits(packed: torch.Tensor, *, highest_first: bool = False) -> torch.Tensor:
    """All truth values in bytes, in one dimension."""
    places = _LOWEST_FIRST.flip(0) if highest_first else _LOWEST_FIRST
    return ((packed.reshape(-1, 1).long() & places) != 0).reshape(-1)
