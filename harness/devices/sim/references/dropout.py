"""Dropout with masks. A mask of torch_npu has one bit for each element, in bytes, padded to 128 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness.devices.sim.references.packed_bits import packed_bits, unpacked_bits
from harness.devices.sim.references.precision import wide

_ALIGNED_BITS = 128


def _packed(kept: torch.Tensor) -> torch.Tensor:
    """The bytes of a mask, the first element in the lowest bit. The padding keeps nothing."""
    return packed_bits(kept, aligned=_ALIGNED_BITS)


def kept_elements(mask: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The elements that a mask keeps, in a shape."""
    return unpacked_bits(mask)[: math.prod(shape)].view(list(shape))


def _scaled(x: torch.Tensor, kept: torch.Tensor, p: float) -> torch.Tensor:
    if p >= 1:
        return torch.zeros_like(x)
    return (wide(x) * kept / (1 - p)).to(x.dtype)


def _kept(size: Sequence[int], p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(list(size), generator=generator) >= p


def dropout_with_mask(input: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
    """The input with elements set to 0 with probability p, the others divided by 1 - p, and the mask."""
    kept = _kept(input.shape, p)
    return _scaled(input, kept, p), _packed(kept)


def npu_dropout_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Gradient for the input."""
    return _scaled(grad_output, kept_elements(mask, grad_output.shape), p)


def dropout_with_byte_mask(self: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `dropout_with_mask`, with a mask that has a byte for each element."""
    kept = _kept(self.shape, p)
    return _scaled(self, kept, p), kept.to(torch.uint8)


def dropout_with_byte_mask_backward(grad_output: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Gradient for the input of `dropout_with_byte_mask`."""
    return _scaled(grad_output, mask.bool(), p)


def npu_dropout_with_add_softmax(
    self: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mask, softmax(x1 + alpha * self), and the latter with dropout. The mask is padded to 128 bytes."""
    kept = _kept(x1.shape, prob)
    mask = torch.zeros(-(-x1.numel() // _ALIGNED_BITS) * _ALIGNED_BITS, dtype=torch.uint8)
    mask[: x1.numel()] = kept.flatten()
    found = torch.softmax(wide(x1) + alpha * wide(self), dim).to(x1.dtype)
    return mask, found, _scaled(found, kept, prob).to(self.dtype)


def npu_dropout_with_add_softmax_backward(
    grad: torch.Tensor,
    mask: torch.Tensor,
    softmax_out: torch.Tensor,
    alpha: float,
    prob: float,
    dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient for `self`; for x1 torch_npu returns the gradient that it was given."""
    kept = mask[: grad.numel()].view(grad.shape).bool()
    weights, given = wide(softmax_out), wide(_scaled(grad, kept, prob))
    found = alpha * weights * (given - (given * weights).sum(dim, keepdim=True))
    return found.to(softmax_out.dtype), grad.clone()


def npu_dropout_do_mask(
    input: torch.Tensor,  # noqa: A002
    mask: torch.Tensor,
    p: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The input under a mask that was made before, and this mask."""
    return _scaled(input, kept_elements(mask, input.shape), p), mask.clone()


def npu_dropout_gen_mask(size: Sequence[int], p: float, **_options: object) -> torch.Tensor:
    """A mask for a tensor of this size."""
    return _packed(_kept(size, p))


def mask_at(size: Sequence[int], p: float, seed: int, offset: int) -> torch.Tensor:
    """A mask that depends only on the seed and the offset."""
    generator = torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + offset) & ((1 << 63) - 1))
    return _packed(_kept(size, p, generator))


def seeded_mask(
    input: torch.Tensor,  # noqa: A002, ARG001 - it only selects the device
    size: Sequence[int],
    p: float,
    seed: int,
    offset: int,
    **_options: object,
) -> torch.Tensor:
    """`mask_at` as an operator."""
    return mask_at(size, p, seed, offset)
