"""SwiGLU between a dequantisation and a quantisation (op-plugin's documents of these operators)."""

from __future__ import annotations

import math

import torch

from harness.devices.sim.references.precision import refuse, wide
from harness.devices.sim.references.quantization import as_integers, npu_dynamic_quant

_INT8 = 1
_PLAIN, _INTERLEAVED, _CLAMPED_HALVES = 0, 1, 2
_COUNTS = 1


def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """a * sigmoid(alpha * a) * (b + bias), where a is at most `limit` and b between -limit and limit.

    a and b are the even and odd elements of `dim` with all dimensions after it, or its halves. group_index:
    the numbers of rows of groups; rows after them are 0, where the operator writes nothing.
    """
    rows = wide(x).reshape(math.prod(x.shape[: dim % x.dim()]), -1)
    a, b = (rows[:, ::2], rows[:, 1::2]) if interleaved else rows.chunk(2, -1)
    y = _clipped(a, b, alpha, limit, bias)
    if group_index is not None:
        y[int(group_index.sum()) :] = 0
    shape = list(x.shape)
    shape[dim] //= 2
    return y.reshape(shape).to(x.dtype)


def npu_swiglu_quant(
    x: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,  # noqa: ARG001 - only of static quantisation
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: int | torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """SwiGLU quantised to int8 row by row (quant_mode 1), and what rows are multiplied by: 127 / the largest.

    CANN's document of aclnnSwiGluQuantV2 divides by 127 and multiplies by the scale; op-plugin's test expects
    127 / the largest, and ATB takes the reciprocal of this result.

    smooth_scales: (groups, n) or (groups,), factors before. group_index: the end of each group's rows, or
    their number (group_list_type 1); rows after them are 0. Static quantisation is not computed.
    """
    refuse(
        "npu_swiglu_quant",
        **{f"quant_mode {quant_mode}": quant_mode != 1},
        **{f"dtype {dst_type}": dst_type not in {None, _INT8, torch.int8}},
    )
    y = _gated(wide(x), activate_left)
    rows = y.reshape(-1, y.shape[-1])
    groups, is_used = _groups(group_index, group_list_type, len(rows))
    if smooth_scales is not None:
        rows = rows * _by_group(smooth_scales, groups, rows.shape[-1])
    quantised, scale = npu_dynamic_quant(rows * is_used)
    factors = torch.where(is_used.flatten() > 0, scale.reciprocal(), 0.0)
    return quantised.reshape(y.shape), factors.reshape(y.shape[:-1])


def npu_dequant_swiglu_quant(
    x: torch.Tensor,
    *,
    weight_scale: torch.Tensor | None = None,
    activation_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    dst_type: int | None = None,
    round_mode: int | None = None,
    activate_dim: int | None = None,
    swiglu_mode: int = 0,
    clamp_limit: float = 7.0,
    glu_alpha: float = 1.702,
    glu_bias: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (tokens, 2h) * weight_scale * activation_scale, then SwiGLU * quant_scale, quantised to int8.

    weight_scale (groups, 2h) and quant_scale (groups, h) belong to the groups of group_index, which has their
    numbers of tokens; tokens after them are 0, where the operator writes nothing. An int32 bias is added to
    x, another one to the product. quant_mode 1: each token gets the scale of its largest number. 0:
    quant_scale divides, quant_offset is added, and the second result is 0 (the golden of op-plugin's
    test_npu_dequant_swiglu_quant.py).
    """
    name = "npu_dequant_swiglu_quant"
    refuse(
        name,
        dst_type=dst_type not in {None, _INT8},
        round_mode=round_mode,
        activate_dim=activate_dim not in {None, -1, x.dim() - 1},
        **{f"swiglu_mode {swiglu_mode}": swiglu_mode not in {_PLAIN, _INTERLEAVED, _CLAMPED_HALVES}},
        **{"scales of numbers that are not int32": weight_scale is not None and x.dtype is not torch.int32},
        **{f"quant_mode {quant_mode} without scales": quant_mode != 1 and quant_scale is None},
        **{"quant_offset with quant_mode 1": quant_mode == 1 and quant_offset is not None},
    )
    groups, is_used = _groups(group_index, _COUNTS, len(x))
    is_whole = bias is not None and bias.dtype is torch.int32
    y = wide(x + bias) if bias is not None and is_whole else wide(x)
    y = y if weight_scale is None else y * wide(weight_scale).reshape(-1, y.shape[-1])[groups]
    y = y if activation_scale is None else y * wide(activation_scale).reshape(-1, 1)
    y = y if bias is None or is_whole else y + wide(bias)
    if swiglu_mode == _PLAIN:
        y = _gated(y, activate_left)
    else:
        left, right = (y[..., ::2], y[..., 1::2]) if swiglu_mode == _INTERLEAVED else y.chunk(2, -1)
        if swiglu_mode == _CLAMPED_HALVES and not activate_left:
            left, right = right, left
        y = _clipped(left, right, glu_alpha, clamp_limit, glu_bias)
    y = y * is_used
    scales = None if quant_scale is None else _by_group(quant_scale, groups, y.shape[-1])
    if quant_mode == 1 or scales is None:
        return npu_dynamic_quant(y if scales is None else y * scales)
    shifted = y / scales
    if quant_offset is not None:
        shifted = shifted + _by_group(quant_offset, groups, y.shape[-1])
    return as_integers((shifted * is_used).round(), torch.int8), torch.zeros(len(x))


def _gated(x: torch.Tensor, left: bool) -> torch.Tensor:
    """SwiGLU of the last dimension; left: which half goes through silu."""
    a, b = x.chunk(2, -1)
    return torch.nn.functional.silu(a) * b if left else torch.nn.functional.silu(b) * a


def _clipped(a: torch.Tensor, b: torch.Tensor, alpha: float, limit: float, bias: float) -> torch.Tensor:
    gate = a.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (b.clamp(-limit, limit) + bias)


def _by_group(values: torch.Tensor, groups: torch.Tensor, columns: int) -> torch.Tensor:
    """Values (groups, columns) or (groups,) -> those of each row; (columns,) if there is one group."""
    own = wide(values)
    if own.dim() == 1 and own.numel() == columns and not bool(groups.any()):
        return own
    return own.reshape(len(own), -1)[groups]


def _groups(group_index: torch.Tensor | None, kind: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The group of each row, and whether it is in one (rows, 1). Without groups, all are in the first."""
    if group_index is None:
        return torch.zeros(rows, dtype=torch.long), torch.ones(rows, 1, dtype=torch.bool)
    ends = group_index.long().cumsum(0) if kind == _COUNTS else group_index.long()
    groups = torch.searchsorted(ends, torch.arange(rows), right=True)
    return groups.clamp(max=len(ends) - 1), (groups < len(ends))[:, None]
