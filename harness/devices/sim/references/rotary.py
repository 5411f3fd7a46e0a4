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
    """Rotates query and key. cos and sin have shapes that broadcast in every layout."""
    refuse("npu_apply_rotary_pos_emb", layout=layout not in {"BSND", "BSH", "BNSD", "SBND", "TND"})
    return npu_rotary_mul(query, cos, sin, rotary_mode), npu_rotary_mul(key, cos, sin, rotary_mode)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Rotate query and key (tokens, heads * head size) in place by the angles of their positions.

    cos_sin_cache: shape (positions, rotary size), the cosines and then the sines of each position.
    """
    cos, sin = (wide(x)[:, None, :] for x in cos_sin_cache[positions.flatten().long()].chunk(2, -1))
    for x in (query, key):
        heads = x.view(positions.numel(), -1, head_size)
        part = heads[..., : 2 * cos.shape[-1]]
        part.copy_(_rotated(part, cos, sin, is_neox_style))


def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str | None = "half",
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rotary_embedding` into new tensors. With sections, each token has three positions, one per section."""
    refuse("npu_mrope", cache_mode=others.get("cache_mode") not in {None, "default"})
    cos, sin = wide(cos_sin_cache[positions.long()]).chunk(2, -1)
    if mrope_section and any(mrope_section):
        cos, sin = (
            torch.cat([part[axis] for axis, part in enumerate(x.split(mrope_section, -1))], -1)
            for x in (cos, sin)
        )
    cos, sin = (x.reshape(-1, 1, x.shape[-1]) for x in (cos, sin))
    results = []
    for x in (query, key):
        heads = x.reshape(cos.shape[0], -1, head_size).clone()
        part = heads[..., : 2 * cos.shape[-1]]
        part.copy_(_rotated(part, cos, sin, rotary_mode == "half"))
        results.append(heads.view(x.shape))
    return results[0], results[1]


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, halves: bool) -> torch.Tensor:
    """Rotates x (..., 2r) by r angles, one for each pair of elements."""
    a, b = wide(x).chunk(2, -1) if halves else (wide(x)[..., ::2], wide(x)[..., 1::2])
    first, second = a * cos - b * sin, b * cos + a * sin
    rotated = torch.cat([first, second], -1) if halves else torch.stack([first, second], -1).flatten(-2)
    return rotated.to(x.dtype)


def _rotate(x: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "half":
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)
    if mode == "interleave":
        return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    raise NotImplementedError(f"the simulated device does not compute rotary_mode {mode!r}")


def _rotate_back(x: torch.Tensor, mode: str) -> torch.Tensor:
    """The transpose of `_rotate`. As a rotation by 90 degrees, its transpose is its negative."""
    return -_rotate(x, mode)


def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x (b, n, s, d), whose pairs lie beside each other; the result has the first halves first."""
    apart = wide(x).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    first, second = apart.chunk(2, -1)
    return (apart * wide(cos) + torch.cat([-second, first], -1) * wide(sin)).to(x.dtype)
