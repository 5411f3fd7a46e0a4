"""Quantisation to int8 and int4, and matmuls of quantised matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import dtype_of, refuse, wide
from harness.devices.sim.references.shaping import scatter_update, scatter_update_

_LARGEST_INT8, _LARGEST_INT4 = 127, 7
# torch.int8 and torch.quint4x2 as numbers. torch_npu packs eight int4 into one int32.
_INT8, _INT4 = 1, 16
_PACKED_INT4 = 8
# Where `npu_trans_quant_param` keeps an offset.
_OFFSET_PLACE, _OFFSET_BITS = 37, 0x1FF
# Types of torch for quantised numbers, and those in which torch_npu returns them.
_STORED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


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
    x = _smoothed(wide(input), smooth_scales, group_index)
    dim = -1 if quant_mode == "pertoken" else -2
    largest = _LARGEST_INT8 if number == _INT8 else _LARGEST_INT4
    scale = x.abs().amax(dim, keepdim=True) / largest
    rounded = (x / scale).nan_to_num(0.0).round().clamp(-largest - 1, largest).to(torch.int8)
    return rounded if number == _INT8 else _packed_int4(rounded), scale.squeeze(dim).float()


def _smoothed(
    x: torch.Tensor, smooth_scales: torch.Tensor | None, group_index: torch.Tensor | None
) -> torch.Tensor:
    """x times the factors; with group_index, the end of each group's rows, times those of the row's group."""
    if smooth_scales is None:
        return x
    if group_index is None:
        return x * wide(smooth_scales)
    rows = x.reshape(-1, x.shape[-1])
    groups = torch.searchsorted(group_index.long(), torch.arange(len(rows)), right=True)
    return (rows * wide(smooth_scales)[groups.clamp(max=len(smooth_scales) - 1)]).reshape(x.shape)


def npu_dynamic_quant_asymmetric(
    input: torch.Tensor,  # noqa: A002
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | torch.dtype | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rounded input / scale + offset, the scale and the offset of each row (or column, "perchannel").

    scale = (largest - smallest) / 255 and offset = 127 - largest / scale (int4: 15 and 7), as in op-plugin's
    npu_dynamic_quant_asymmetric.md and the golden of its test.
    """
    number = _INT8 if dst_type is None else _number(dst_type)
    refuse(
        "npu_dynamic_quant_asymmetric",
        dst_type_max=dst_type_max,
        **{f"dtype {dst_type}": number not in {_INT8, _INT4}},
        **{f"quant_mode {quant_mode}": quant_mode not in {"pertoken", "perchannel"}},
    )
    x = _smoothed(wide(input), smooth_scales, group_index)
    dim = -1 if quant_mode == "pertoken" else -2
    top = _LARGEST_INT8 if number == _INT8 else _LARGEST_INT4
    largest = x.amax(dim, keepdim=True)
    scale = (largest - x.amin(dim, keepdim=True)) / (2 * top + 1)
    # The scale is 0, by which nobody knows what the kernel divides.
    refuse("npu_dynamic_quant_asymmetric", **{"rows of equal numbers": bool((scale == 0).any())})
    offset = top - largest / scale
    rounded = (x / scale + offset).round().clamp(-top - 1, top).to(torch.int8)
    values = rounded if number == _INT8 else _packed_int4(rounded)
    return values, scale.squeeze(dim).float(), offset.squeeze(dim).float()


def npu_quantize(
    input: torch.Tensor,  # noqa: A002
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: int | torch.dtype,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """The rounded input / scales + zero_points; without div_mode, input * scales + zero_points.

    Scales with one dimension belong to `axis`; without div_mode to the last but one for -2, else to the last
    (op-plugin's npu_quantize.md).
    """
    x = wide(input)
    if not div_mode:
        axis = -2 if axis == -2 else -1
    shape = [1] * x.dim()
    shape[axis] = -1
    factors, zeros = (
        values if values is None or values.dim() != 1 else values.reshape(shape)
        for values in (scales, zero_points)
    )
    scaled = x / wide(factors) if div_mode else x * wide(factors)
    return _stored((scaled if zeros is None else scaled + wide(zeros)).round(), dtype)


def npu_group_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    group_index: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: int | torch.dtype | None = None,
) -> torch.Tensor:
    """The rounded x (rows, h) * scale (groups, h) + offset. group_index has the end of each group's rows."""
    rows = torch.arange(len(x))
    groups = torch.searchsorted(group_index.long(), rows, right=True).clamp(max=len(scale) - 1)
    scaled = wide(x) * wide(scale)[groups]
    rounded = (scaled if offset is None else scaled + wide(offset)).round()
    return _stored(rounded, _INT8 if dst_dtype is None else dst_dtype)


def quantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, y: torch.Tensor
) -> None:
    """ATB's: y is the rounded x / scale, plus the zero point, in int8."""
    rounded = (wide(x) / wide(scale)).round()
    y.copy_(as_integers(rounded + wide(zero_point) if zero_point.numel() else rounded, torch.int8))


def _stored(rounded: torch.Tensor, dtype: int | torch.dtype) -> torch.Tensor:
    """Whole numbers in the type in which torch_npu returns quantised numbers of `dtype`."""
    if _number(dtype) == _INT4:
        return _packed_int4(rounded.clamp(-_LARGEST_INT4 - 1, _LARGEST_INT4).to(torch.int8))
    wanted = dtype_of(dtype)
    return as_integers(rounded, _STORED.get(wanted, wanted))


def as_integers(rounded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers in an integer type; those that it does not have become its nearest."""
    refuse("quantisation", **{f"dtype {dtype}": dtype not in {torch.int8, torch.uint8, torch.int32}})
    limits = torch.iinfo(dtype)
    return rounded.double().clamp(limits.min, limits.max).to(dtype)


def npu_quant_scatter(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | torch.dtype | None = None,
    round_mode: str | None = "rint",
) -> torch.Tensor:
    """`scatter_update` with the updates of `npu_quantize`: what op-plugin's test of it computes."""
    written = _quantised_updates(
        updates, quant_scales, quant_zero_points, axis, quant_axis, reduce, dst_type, round_mode
    )
    return scatter_update(input, indices, written, axis)


def npu_quant_scatter_(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | torch.dtype | None = None,
    round_mode: str | None = "rint",
) -> torch.Tensor:
    """`npu_quant_scatter` into its first argument."""
    written = _quantised_updates(
        updates, quant_scales, quant_zero_points, axis, quant_axis, reduce, dst_type, round_mode
    )
    return scatter_update_(input, indices, written, axis)


def _quantised_updates(
    updates: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_axis: int,
    reduce: str,
    dst_type: int | torch.dtype | None,
    round_mode: str | None,
) -> torch.Tensor:
    rank = updates.dim()
    refuse(
        "npu_quant_scatter",
        reduce=reduce != "update",
        round_mode=round_mode not in {None, "rint"},
        dst_type=dst_type is not None and _number(dst_type) != _INT8,
        axis=axis % rank != rank - 2,
        quant_axis=quant_axis % rank != rank - 1,
    )
    zeros = None if zero_points is None else zero_points.reshape(-1)
    return npu_quantize(updates, scales.reshape(-1), zeros, _INT8, -1)


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
    """Scales as the 64-bit numbers that matrix units read: the 19 highest bits of a float32, and bit 46.

    round_mode 1 rounds to these bits, 0 cuts the others off. Offsets are whole numbers of 9 bits, from bit 37
    on (op-plugin's npu_trans_quant_param.md).
    """
    bits = wide(scale).contiguous().view(torch.int32).long() & 0xFFFFFFFF
    if round_mode:
        # To the nearest, ties to the even one: half of the lowest bit kept, less one where that bit is 0.
        bits = bits + 0xFFF + ((bits >> 13) & 1)
    packed = bits & 0xFFFFE000 | 1 << 46
    if offset is None:
        return packed
    whole = wide(offset).round().clamp(-256, 255).long()
    both = packed & 0x4000FFFFFFFF | (whole & _OFFSET_BITS) << _OFFSET_PLACE
    return both if scale.dim() == 1 else both.reshape(scale.shape)


def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | torch.dtype | None = None,
    group_sizes: Sequence[int] | None = None,
    **others: object,
) -> torch.Tensor:
    """x1 @ x2 of int8 or int4 matrices, times the scale of each column and of each row (pertoken_scale).

    int4 are eight in one int32, along the last dimension of a matrix or of its transpose. An int32 bias is
    added to the exact product, another one to the result. The result is int8 unless output_dtype says
    otherwise; only then `offset`, or that in scales of `npu_trans_quant_param`, is added. With group_sizes,
    see `_by_groups`.
    """
    refuse("npu_quant_matmul", **{name: value is not None for name, value in others.items()})
    if group_sizes:
        dtype = torch.int8 if output_dtype is None else dtype_of(output_dtype)
        return _by_groups(x1, x2, scale, offset, pertoken_scale, bias, group_sizes).to(dtype)
    if x1.dtype is torch.int32 and x2.dtype is torch.int32:
        x1 = unpacked_int4(x1)
        x2 = unpacked_rows(x2, x1.shape[-1])
    if x1.dtype is not torch.int8 or x2.dtype is not torch.int8:
        raise NotImplementedError(
            "the simulated device does not compute npu_quant_matmul of other types than int8 and int4"
        )
    dtype = torch.int8 if output_dtype is None else dtype_of(output_dtype)
    # Sums of products of int8 are exact in float64.
    total = x1.double() @ x2.double()
    if bias is not None and bias.dtype is torch.int32:
        total = total + (bias.unsqueeze(1) if bias.dim() > 1 and bias.dim() < total.dim() else bias).double()
    if dtype is torch.int32:
        return total.to(dtype)
    result = total.float() * factors(scale)
    if pertoken_scale is not None:
        result = result * pertoken_scale.float().unsqueeze(-1)
    if bias is not None and bias.dtype is not torch.int32:
        result = result + bias.float()
    if dtype is not torch.int8:
        return result.to(dtype)
    result = result + (_offsets(scale) if offset is None else offset.float())
    return result.round().clamp(-_LARGEST_INT8 - 1, _LARGEST_INT8).to(dtype)


def _by_groups(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    pertoken_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_sizes: Sequence[int],
) -> torch.Tensor:
    """int8 (m, k) @ int4 (k, n), of which so many rows as group_sizes[2] have a scale in each column.

    The kernel multiplies the two halves of x1 as int4: of the lower one 8 is subtracted. So x1 counts as
    x1 - 8, and callers hand over as `offset` what that takes away (op-plugin's test of A8W4).
    """
    refuse(
        "npu_quant_matmul",
        bias=bias is not None,
        **{
            f"group_sizes {list(group_sizes)}": tuple(group_sizes[:2]) != (0, 0) or not group_sizes[2],
            "groups of other types than int8 with int4": x1.dtype is not torch.int8
            or x2.dtype is not torch.int32,
        },
    )
    weights = unpacked_rows(x2, x1.shape[-1])
    per_row = by_group(factors(scale), group_sizes[2], weights.shape[0])
    result = (x1.double() - 8) @ dequantised(weights, per_row, None).double()
    result = result if offset is None else result + offset.double()
    return result if pertoken_scale is None else result * pertoken_scale.double().reshape(-1, 1)


def _offsets(scale: torch.Tensor) -> torch.Tensor:
    """The offsets in scales of `npu_trans_quant_param`; 0 for other scales."""
    if scale.dtype not in {torch.int64, torch.uint64}:
        return torch.zeros(())
    whole = (scale.view(torch.int64) >> _OFFSET_PLACE) & _OFFSET_BITS
    return torch.where(whole > _OFFSET_BITS // 2, whole - _OFFSET_BITS - 1, whole).float()


def factors(scale: torch.Tensor) -> torch.Tensor:
    """Scales in float32, also those of `npu_trans_quant_param`."""
    if scale.dtype in {torch.int64, torch.uint64}:
        return (scale.view(torch.int64) & 0xFFFFFFFF).to(torch.int32).view(torch.float32)
    return scale.float()


def _number(dtype: int | torch.dtype) -> int:
    """The number of a dtype. torch.dtype has none in Python, so only those of this module are known."""
    if isinstance(dtype, int):
        return dtype
    return {torch.int8: _INT8, torch.quint4x2: _INT4}.get(dtype, -1)


def npu_convert_weight_to_int4pack(weight: torch.Tensor, inner_k_tiles: int = 0) -> torch.Tensor:  # noqa: ARG001 - not used by the operator either
    """Numbers of int4 in int32 -> eight of them in one int32."""
    refuse("npu_convert_weight_to_int4pack", **{"other types than int32": weight.dtype is not torch.int32})
    return _packed_int4(weight)


def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,  # noqa: ARG001 - a hint
    weight_dtype: int | None = None,
) -> torch.Tensor:
    """x @ ((weight + antiquant_offset) * antiquant_scale) + bias, for weights in int8 or int4.

    With antiquant_group_size, the scales have one row for so many rows of the weight. With quant_scale, the
    result times it plus quant_offset in int8 (op-plugin's npu_weight_quant_batchmatmul.md).
    """
    whole = [t for t in (antiquant_scale, quant_scale) if t is not None and not t.is_floating_point()]
    refuse("npu_weight_quant_batchmatmul", **{"integer scales": bool(whole)}, weight_dtype=weight_dtype)
    numbers = unpacked_rows(weight, x.shape[-1]) if weight.dtype is torch.int32 else weight
    refuse("npu_weight_quant_batchmatmul", **{f"weights in {weight.dtype}": numbers.dtype is not torch.int8})
    scale, offset = (
        by_group(t, antiquant_group_size, numbers.shape[0]) for t in (antiquant_scale, antiquant_offset)
    )
    result = wide(x) @ dequantised(numbers, scale, offset)
    if bias is not None:
        result = result + wide(bias)
    if quant_scale is None:
        return result.to(x.dtype)
    result = result * wide(quant_scale)
    return as_integers((result if quant_offset is None else result + wide(quant_offset)).round(), torch.int8)


def dequantised(
    numbers: torch.Tensor, scale: torch.Tensor | None, offset: torch.Tensor | None
) -> torch.Tensor:
    """(numbers + offset) * scale in float32."""
    values = numbers.float() if offset is None else numbers.float() + wide(offset)
    return values if scale is None else values * wide(scale)


def by_group(values: torch.Tensor | None, size: int, rows: int) -> torch.Tensor | None:
    """Values (groups, n) -> (rows, n), each for `size` rows; unchanged for size 0."""
    if values is None or not size:
        return values
    return values.repeat_interleave(size, 0)[:rows]


def unpacked_int4(packed: torch.Tensor) -> torch.Tensor:
    """The opposite of `_packed_int4`: int32 with eight int4 -> int8."""
    places = 4 * torch.arange(_PACKED_INT4)
    numbers = (packed.long().unsqueeze(-1) >> places) & 0xF
    return torch.where(numbers > _LARGEST_INT4, numbers - 16, numbers).flatten(-2).to(torch.int8)


def unpacked_rows(packed: torch.Tensor, rows: int) -> torch.Tensor:
    """`unpacked_int4` of a matrix with this number of rows, or of its transpose, whichever was packed."""
    if packed.shape[-2] == rows:
        return unpacked_int4(packed)
    return unpacked_int4(packed.transpose(-1, -2)).transpose(-1, -2)


def _packed_int4(values: torch.Tensor) -> torch.Tensor:
    """int4 in int8 -> int32 with eight of them, the first in the lowest bits."""
    shape: Sequence[int] = (*values.shape[:-1], values.shape[-1] // _PACKED_INT4, _PACKED_INT4)
    places = 4 * torch.arange(_PACKED_INT4)
    packed = ((values.long() & 0xF).reshape(shape) << places).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def npu_ifmr(
    data: torch.Tensor,
    data_min: torch.Tensor,
    data_max: torch.Tensor,
    cumsum: torch.Tensor,
    min_percentile: float,
    max_percentile: float,
    search_start: float,
    search_end: float,
    search_step: float,
    with_offset: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and offset of int8 with the least squared error, of some multiples of a clipped range.

    cumsum: how many numbers the bins of equal width up to each one contain. The formula is that of
    op-plugin's own test.
    """
    shares = wide(cumsum) / data.numel()
    low, high, bins = wide(data_min), wide(data_max), cumsum.numel()
    upper = (shares < max_percentile).sum() / bins * (high - low) + low
    lower = (shares < 1 - min_percentile).sum() / bins * (high - low) + low
    factors = torch.arange(search_start, search_end, search_step)
    if with_offset:
        lower, upper = lower.clamp(max=0), upper.clamp(min=0)
        scales = (upper * factors - lower) / 255
        scales = torch.where(scales < torch.finfo(torch.float32).eps, 1.0, scales)
        offsets = -(torch.round(lower / scales) + 128)
    else:
        scales = torch.maximum(upper.abs(), lower.abs()) * factors / 127
        offsets = torch.zeros_like(scales)
    pairs = zip(scales, offsets, strict=True)
    best = torch.stack([_squared_error(data, *pair) for pair in pairs]).argmin()
    return scales[best].view(1).to(data_min.dtype), offsets[best].view(1).to(data_min.dtype)


def _squared_error(data: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    numbers = (torch.round(wide(data) / scale) + offset).clamp(-128, 127)
    return ((numbers - offset) * scale - wide(data)).square().sum()
