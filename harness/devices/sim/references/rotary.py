"""Rotary position embedding: y = x * r1 + rotate(x) * r2."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import refuse, wide


def npu_rotary_mul(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """r1, r2: cosine and sine, broadcast over heads."""
    refuse("npu_rotary_mul", rotate=rotate is not None)
    x = wide(input)
    return (x * wide(r1) + _rotate(x, rotary_mode) * wide(r2)).to(input.dtype)


def npu_rotary_mul_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for input, r1 and r2; those of r1 and r2 are summed to their shapes."""
    g, x = wide(grad), wide(input)
    dx = g * wide(r1) + _rotate_back(g * wide(r2), rotary_mode)
    dr1 = (g * x).sum_to_size(r1.shape)
    dr2 = (g * _rotate(x, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(input.dtype), dr1.to(r1.dtype), dr2.to(r2.dtype)


def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both rotated; cos and sin broadcast against them whatever the layout."""
    refuse("npu_apply_rotary_pos_emb", layout=layout not in {"BSND", "BSH", "BNSD", "SBND", "TND"})
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


def _rotate(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "half":
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)
    if mode == "interleave":
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    raise NotImplementedError(f"the simulated device does not compute rotary_mode {mode!r}")


def _rotate_back(x: torch.Tensor, mode: str) -> torch.Tensor:
    """The transpose of `_rotate`, which is its inverse: a rotation by a quarter turn."""
    return -_rotate(x, mode)
