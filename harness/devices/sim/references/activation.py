"""Gated and smooth activations."""

from __future__ import annotations

import torch
from torch.nn import functional

from harness.devices.sim.references.precision import refuse, wide

# fast_gelu is x * sigmoid(1.702 x), the approximation of the GELU paper (arXiv 1606.08415, section 2).
_FAST_GELU = 1.702


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:  # noqa: A002 - the operator's name
    """silu(first half) * second half along `dim`."""
    gate, up = wide(input).chunk(2, dim)
    return (functional.silu(gate) * up).to(input.dtype)


def npu_swiglu_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    dim: int = -1,
) -> torch.Tensor:
    """Gradient for the input."""
    gate, up = wide(input).chunk(2, dim)
    g = wide(grad_output)
    s = torch.sigmoid(gate)
    return torch.cat([g * up * (s * (1 + gate * (1 - s))), g * gate * s], dim).to(input.dtype)


def npu_silu(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """x * sigmoid(x)."""
    return functional.silu(input)


def npu_silu_(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """x * sigmoid(x), in place."""
    return functional.silu(input, inplace=True)


def npu_silu_backward(grad_output: torch.Tensor, x0: torch.Tensor, x1: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Gradient for x0. x1 is the result of the forward operator, which is not needed here."""
    x, g = wide(x0), wide(grad_output)
    s = torch.sigmoid(x)
    return (g * (s * (1 + x * (1 - s)))).to(x0.dtype)


def npu_mish(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """x * tanh(softplus(x))."""
    return functional.mish(wide(input)).to(input.dtype)


def npu_mish_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """Gradient for the input."""
    return torch.ops.aten.mish_backward(wide(grad), wide(input)).to(input.dtype)


def npu_gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:  # noqa: A002
    """GELU, exact or approximated with tanh."""
    return functional.gelu(input, approximate=approximate)


def npu_gelu_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    *,
    approximate: str = "none",
) -> torch.Tensor:
    """Gradient for the input."""
    return torch.ops.aten.gelu_backward(grad_output, input, approximate=approximate)


def npu_gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:  # noqa: A002
    """gelu(first half) * second half along the last dimension."""
    gate, up = wide(input).chunk(2, -1)
    return (functional.gelu(gate, approximate=approximate) * up).to(input.dtype)


def npu_fast_gelu(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """x * sigmoid(1.702 x)."""
    x = wide(input)
    return (x * torch.sigmoid(_FAST_GELU * x)).to(input.dtype)


def npu_fast_gelu_backward(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """Gradient for the input."""
    x = wide(input)
    s = torch.sigmoid(_FAST_GELU * x)
    return (wide(grad) * (s + x * _FAST_GELU * s * (1 - s))).to(input.dtype)


def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """softmax(scale * x) over the last dimension. True in `mask` hides an entry; a hidden row is zero."""
    refuse("npu_scaled_masked_softmax", fixed_triu_mask=fixed_triu_mask)
    scores = (wide(x) * scale).masked_fill(mask, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0).to(x.dtype)


def npu_scaled_masked_softmax_backward(
    y_grad: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, scale: float, fixed_triu_mask: bool
) -> torch.Tensor:
    """Gradient for x."""
    refuse("npu_scaled_masked_softmax_backward", fixed_triu_mask=fixed_triu_mask)
    p, g = wide(y), wide(y_grad)
    inner = p * (g - (g * p).sum(-1, keepdim=True))
    return (inner.masked_fill(mask, 0.0) * scale).to(y.dtype)


def npu_masked_softmax_with_rel_pos_bias(
    x: torch.Tensor,
    atten_mask: torch.Tensor | None,
    relative_pos_bias: torch.Tensor,
    scale_value: float = 1.0,
    inner_precision_mode: int = 0,
) -> torch.Tensor:
    """softmax(scale * x + mask + bias) over the last dimension.

    x: (b, w, n, s1, s2) or (b * w, n, s1, s2). atten_mask (w, s1, s2) and relative_pos_bias
    (n, s1, s2) are added.
    """
    refuse("npu_masked_softmax_with_rel_pos_bias", inner_precision_mode=inner_precision_mode)
    rows, columns = x.shape[-2:]
    heads = x.shape[-3]
    scores = wide(x) * scale_value
    if atten_mask is not None:
        windows = atten_mask.numel() // (rows * columns)
        mask = wide(atten_mask).reshape(windows, 1, rows, columns)
        scores = (scores.reshape(-1, windows, heads, rows, columns) + mask).reshape(x.shape)
    scores = scores + wide(relative_pos_bias).reshape(heads, rows, columns)
    return torch.softmax(scores, -1).to(x.dtype)


def npu_attn_softmax_(input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """The softmax of the last dimension, in place."""
    return input.copy_(torch.softmax(wide(input), -1))


def npu_attn_softmax_backward_(
    input: torch.Tensor,  # noqa: A002
    grad_output: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Replaces the probabilities by the gradient for their logits; grad_output is that of p @ values."""
    p = wide(input)
    for_p = wide(grad_output) @ wide(values).transpose(-1, -2)
    return input.copy_(p * (for_p - (for_p * p).sum(-1, keepdim=True)))
