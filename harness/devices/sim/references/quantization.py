"""Quantisation to int8 and int4, and matmuls of quantised matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import dtype_of, refuse, wide

_LARGEST_INT8, _LARGEST_INT4 = 127, 7
# torch.int8 and torch.quint4x2 as numbers. torch_npu packs eight int4 into one int32.
_INT8, _INT4 = 1, 16
_PACKED_INT4 = 8


def npu_dynamic_quant(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | torch.dtype | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rounded input / scale, and the scale: the largest magnitude / 127 (int4: / 7) of each row.

    smooth_scales: factors of the input before; with group_index, which has the end of each group's rows, a
    row of them for each group. quant_mode: "pertoken", or "perchannel", where each column has a scale.
    """
    refuse("npu_dynamic_quant", dst_type_max=dst_type_max)
    number = _INT8 if dst_type is None else _number(dst_type)
    if quant_mode not in {"pertoken", "perchannel"} or number not in {_INT8, _INT4}:
        raise NotImplementedError(
            f"the simulated device does not compute npu_dynamic_quant {quant_mode} with dtype {dst_type}"
        )
    x = wide(input)
    if smooth_scales is not None and group_index is None:
        x = x * wide(smooth_scales)
    elif smooth_scales is not None and group_index is not None:
        rows = x.reshape(-1, x.shape[-1])
        groups = torch.searchsorted(group_index.long(), torch.arange(len(rows)), right=True)
        x = (rows * wide(smooth_scales)[groups.clamp(max=len(smooth_scales) - 1)]).reshape(x.shape)
    dim = -1 if quant_mode == "pertoken" else -2
    largest = _LARGEST_INT8 if number == _INT8 else _LARGEST_INT4
    scale = x.abs().amax(dim, keepdim=True) / largest
    rounded = (x / scale).nan_to_num(0.0).round().clamp(-largest - 1, largest).to(torch.int8)
    return rounded if number == _INT8 else _packed_int4(rounded), scale.squeeze(dim).float()


def npu_anti_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: int | torch.dtype | None = None,
    src_dtype: int | torch.dtype | None = None,
) -> torch.Tensor:
    """(x + offset) * scale, for int8, and in float16 unless another dtype is given."""
    if x.dtype is not torch.int8 or (src_dtype is not None and _number(src_dtype) != _INT8):
        raise NotImplementedError(
            "the simulated device does not compute npu_anti_quant of other types than int8"
        )
    values = x.float() if offset is None else x.float() + wide(offset)
    return (values * wide(scale)).to(torch.float16 if dst_dtype is None else dtype_of(dst_dtype))


def npu_trans_quant_param(
    scale: torch.Tensor, offset: torch.Tensor | None = None, round_mode: int | None = 0
) -> torch.Tensor:
    """Scales as the 64-bit numbers that matrix units read: float32 without its lowest 13 bits, and bit 46."""
    refuse("npu_trans_quant_param", offset=offset is not None, round_mode=round_mode)
    bits = wide(scale).contiguous().view(torch.int32).long() & 0xFFFFE000
    return bits | (1 << 46)


def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | torch.dtype | None = None,
    **others: object,
) -> torch.Tensor:
    """x1 @ x2 of int8 matrices, times the scale of each column and of each row (pertoken_scale).

    An int32 bias is added to the exact product, another one to the result. The result is int8 unless
    output_dtype says otherwise; only then `offset` is added.
    """
    refuse("npu_quant_matmul", **{name: value is not None for name, value in others.items()})
    if x1.dtype is not torch.int8 or x2.dtype is not torch.int8:
        raise NotImplementedError(
            "the simulated device does not compute npu_quant_matmul of other types than int8"
        )
    dtype = torch.int8 if output_dtype is None else dtype_of(output_dtype)
    # Sums of products of int8 are exact in float64.
    total = x1.double() @ x2.double()
    if bias is not None and bias.dtype is torch.int32:
        total = total + (bias.unsqueeze(1) if bias.dim() > 1 and bias.dim() < total.dim() else bias).double()
    if dtype is torch.int32:
        return total.to(dtype)
    result = total.float() * _factors(scale)
    if pertoken_scale is not None:
        result = result * pertoken_scale.float().unsqueeze(-1)
    if bias is not None and bias.dtype is not torch.int32:
        result = result + bias.float()
    if dtype is not torch.int8:
        return result.to(dtype)
    result = result if offset is None else result + offset.float()
    return result.round().clamp(-_LARGEST_INT8 - 1, _LARGEST_INT8).to(dtype)


def _factors(scale: torch.Tensor) -> torch.Tensor:
    """Scales in float32, also those of `npu_trans_quant_param`."""
    if scale.dtype in {torch.int64, torch.uint64}:
        return (scale.view(torch.int64) & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _number(dtype: int | torch.dtype) -> int:
    """The number of a dtype. torch.dtype has none in Python, so only those of this module are known."""
    if isinstance(dtype, int):
        return dtype
    return {torch.int8: _INT8, torch.quint4x2: _INT4}.get(dtype, -1)


def _packed_int4(values: torch.Tensor) -> torch.Tensor:
    """int4 in int8 -> int32 with eight of them, the first in the lowest bits."""
    shape: Sequence[int] = (*values.shape[:-1], values.shape[-1] // _PACKED_INT4, _PACKED_INT4)
    places = 4 * torch.arange(_PACKED_INT4)
    packed = ((values.long() & 0xF).reshape(shape) << places).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)
