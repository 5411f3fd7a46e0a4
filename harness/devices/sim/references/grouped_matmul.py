"""Matmuls of groups of rows, as of the tokens of each expert, also of quantised matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.devices.sim.references.activation import npu_fast_gelu
from harness.devices.sim.references.precision import dtype_of, refuse, wide
from harness.devices.sim.references.quantization import (
    as_integers,
    by_group,
    dequantised,
    factors,
    npu_dynamic_quant,
    unpacked_int4,
    unpacked_rows,
)

Tensors = Sequence[torch.Tensor]

_ACTIVATIONS: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {
    1: torch.relu,
    2: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    4: npu_fast_gelu,
    5: torch.nn.functional.silu,
}


def npu_grouped_matmul(
    x: Tensors,
    weight: Tensors,
    *,
    bias: Tensors | None = None,
    scale: Tensors | None = None,
    antiquant_scale: Tensors | None = None,
    antiquant_offset: Tensors | None = None,
    per_token_scale: Tensors | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,  # noqa: ARG001 - a hint
    output_dtype: int | torch.dtype | None = None,
    **others: object,
) -> list[torch.Tensor]:
    """One matmul for each group.

    group_list: the end of each group's rows (group_list_type 0) or their number (1). group_type -1: x[i] @
    weight[i]. 0: the rows of x are grouped; weight has the shape (groups, k, n) or is a list. 2: the summed
    dimension is grouped; the result has the shape (groups, m, n). split_item 2 and 3 return one tensor, which
    is 0 after the last group, where the operator writes nothing. int8 @ int8 is exact, then scaled by column
    and by row (per_token_scale); antiquant_scale: of weights in int8 or int4 (op-plugin's
    npu_grouped_matmul.md, formulas 1 to 4).
    """
    given = {name: value for name, value in others.items() if value}
    refuse(
        "npu_grouped_matmul", **{f"act_type {act_type}": act_type not in {None, 0, *_ACTIVATIONS}}, **given
    )
    dtype = dtype_of(output_dtype) if output_dtype is not None else x[0].dtype
    if group_type == 2:
        quantised = {"scale": bool(scale), "antiquant_scale": bool(antiquant_scale)}
        refuse("npu_grouped_matmul", **quantised, activation=bool(act_type), bias=bool(bias))
        ends = _ends(group_list, group_list_type)
        lefts, rights = _parts(x, ends, 1), _parts(weight, ends, 0)
        return [torch.stack([wide(a) @ wide(b) for a, b in zip(lefts, rights, strict=True)]).to(dtype)]
    if group_type not in {None, -1, 0}:
        raise NotImplementedError(
            f"the simulated device does not compute npu_grouped_matmul group_type {group_type}"
        )
    row_scales = per_token_scale
    if group_type == 0:
        weights = weight[0].unbind(0) if len(weight) == 1 and weight[0].dim() > 2 else weight
        ends = [] if len(x) > 1 else _ends(group_list, group_list_type)
        rows = _parts(x, ends, 0)
        row_scales = _parts(per_token_scale, ends, 0) if per_token_scale else None
    else:
        refuse("npu_grouped_matmul", group_list=group_list is not None)
        rows, weights = list(x), weight
    groups = len(weights)
    parts = zip(
        rows,
        weights,
        _of_groups("bias", bias, groups),
        _of_groups("scale", scale, groups),
        _of_groups("per_token_scale", row_scales, groups),
        _of_groups("antiquant_scale", antiquant_scale, groups),
        _of_groups("antiquant_offset", antiquant_offset, groups),
        strict=True,
    )
    activation = _ACTIVATIONS.get(act_type or 0)
    results = [
        _group(own, matrix, added, factor, row_factor, weight_factor, shift, dtype, activation)
        for own, matrix, added, factor, row_factor, weight_factor, shift in parts
    ]
    if split_item not in {2, 3}:
        return results
    written = torch.cat(results)
    whole = x[0].shape[0] if len(x) == 1 else len(written)
    return [torch.cat([written, written.new_zeros(whole - len(written), *written.shape[1:])])]


def npu_grouped_matmul_add_(
    self: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """Adds x[rows].T @ weight[rows] of each group of rows to `self` (groups, m, n) or (groups * m, n).

    Gradients of experts' weights, as Megatron accumulates them. group_list: the end of each group's rows.
    """
    refuse(
        "npu_grouped_matmul_add_",
        transpose_x=not transpose_x,
        transpose_weight=transpose_weight,
        **{f"group_type {group_type}": group_type != 2},
        # torch_npu hands it on only on Ascend 950 (GroupedMatmulAddNpuOpApi.cpp).
        **{f"group_list_type {group_list_type}": bool(group_list_type)},
    )
    ends = _ends(group_list, 0)
    pairs = zip(_parts([x], ends, 0), _parts([weight], ends, 0), strict=True)
    added = torch.stack([wide(left).T @ wide(right) for left, right in pairs])
    return self.copy_(wide(self) + added.reshape(self.shape))


def npu_grouped_matmul_add(
    self: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, group_list: torch.Tensor, **options: Any
) -> torch.Tensor:
    """A copy of `self` after `npu_grouped_matmul_add_`, which torch_npu calls here too."""
    return npu_grouped_matmul_add_(self, x, weight, group_list, **options).clone()


def _group(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    antiquant_scale: torch.Tensor | None,
    antiquant_offset: torch.Tensor | None,
    dtype: torch.dtype,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    """One group's product in `dtype`."""
    if antiquant_scale is not None:
        numbers = unpacked_rows(weight, x.shape[-1]) if weight.dtype is torch.int32 else weight
        refuse("npu_grouped_matmul", **{"antiquant_scale by group": antiquant_scale.dim() > 1})
        result = wide(x) @ dequantised(numbers, antiquant_scale, antiquant_offset)
    elif x.dtype is torch.int8 and weight.dtype is torch.int8:
        result = x.double() @ weight.double()
    else:
        refuse(
            "npu_grouped_matmul",
            **{f"{x.dtype} and {weight.dtype}": not (x.is_floating_point() and weight.is_floating_point())},
            scale=scale is not None,
            per_token_scale=row_scale is not None,
        )
        result = wide(x) @ wide(weight)
    is_whole = bias is not None and not bias.is_floating_point()
    if bias is not None and is_whole:
        result = result + bias
    if scale is not None:
        result = result.float() * factors(scale)
    if row_scale is not None:
        result = result * row_scale.unsqueeze(-1)
    if bias is not None and not is_whole:
        result = result + wide(bias)
    if activation is not None:
        result = activation(result)
    return result.to(dtype) if dtype.is_floating_point else as_integers(result.round(), dtype)


def npu_grouped_matmul_swiglu_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`npu_grouped_matmul_swiglu_quant_v2` of one weight, whose assist matrix is `bias` here."""
    refuse("npu_grouped_matmul_swiglu_quant", offset=offset is not None)
    assist = None if bias is None else [bias]
    quantised = npu_grouped_matmul_swiglu_quant_v2(
        x, [weight], [weight_scale], x_scale, group_list, weight_assist_matrix=assist
    )
    return *quantised, torch.empty(())


def npu_grouped_matmul_swiglu_quant_v2(
    x: torch.Tensor,
    weight: Tensors,
    weight_scale: Tensors,
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    smooth_scale: torch.Tensor | None = None,
    weight_assist_matrix: Tensors | None = None,
    dequant_mode: int | None = 0,
    group_list_type: int | None = 0,
    quant_dtype: int | torch.dtype | None = 1,
    tuning_config: object = None,  # noqa: ARG001 - for the speed only
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (m, k) @ weight (groups, k, 2n) with both scales, silu(left) * right * smooth_scale, int8 by rows.

    group_list has the end of each group's rows, or with group_list_type 1 their number. smooth_scale:
    (groups, n) or (groups). The second result has the scale of each row. Rows after the last group are 0,
    where the operator writes nothing. Types: see `_product`.
    """
    refuse(
        "npu_grouped_matmul_swiglu_quant_v2",
        **{f"{len(weight)} weights": len(weight) != 1},
        **{f"dequant_mode {dequant_mode}": dequant_mode not in {None, 0, 1}},
        group_list_type=group_list_type not in {None, 0, 1},
        quant_dtype=quant_dtype not in {None, 1, torch.int8},
        **{
            name: value is not None and not (isinstance(value, int) and value == 0)
            for name, value in others.items()
            if name != "dequant_dtype"
        },
    )
    ends = _ends(group_list, group_list_type)
    parts = zip(
        _parts([x], ends, 0),
        _parts([x_scale], ends, 0),
        _matrices(weight[0]),
        weight_scale[0],
        weight_assist_matrix[0] if weight_assist_matrix else [None] * len(ends),
        strict=True,
    )
    product = torch.cat([_product(*part) for part in parts])
    gate, up = product.chunk(2, -1)
    activated = torch.nn.functional.silu(gate) * up
    factor = smooth_scale if smooth_scale is None or smooth_scale.dim() > 1 else smooth_scale.unsqueeze(-1)
    values, scales = npu_dynamic_quant(activated, smooth_scales=factor, group_index=torch.tensor(ends))
    rest = x.shape[0] - len(values)
    return torch.cat([values, values.new_zeros(rest, values.shape[1])]), torch.cat(
        [scales, scales.new_zeros(rest)]
    )


def _matrices(weight: torch.Tensor) -> torch.Tensor:
    """int8 weights (groups, k, n), from those or from int4, eight of which are in one int32 along n.

    Five dimensions (groups, n / w, k / 16, 16, w) are the blocks of the format NZ as they lie in memory; w is
    32 for int8 and 64 for int4.
    """
    numbers = unpacked_int4(weight) if weight.dtype is torch.int32 else weight
    if numbers.dim() == 5:
        groups, blocks, bands, height, width = numbers.shape
        numbers = numbers.permute(0, 2, 3, 1, 4).reshape(groups, bands * height, blocks * width)
    refuse(
        "npu_grouped_matmul_swiglu_quant",
        **{f"weights in {numbers.dtype}": numbers.dtype is not torch.int8},
        **{f"weights of {numbers.dim()} dimensions": numbers.dim() != 3},
    )
    return numbers


def _product(
    x: torch.Tensor,
    x_scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    assist: torch.Tensor | None,
) -> torch.Tensor:
    """One group's product of int8 with int8 or int4 with int4 numbers, times both scales, in float32.

    With `assist`, int8 times int4: the kernel multiplies the halves of x as int4 and subtracts 8 of the lower
    one. So x counts as x - 8, and callers hand over in `assist` what that takes away. Only there may
    weight_scale have a row for each group of k (op-plugin's npu_grouped_matmul_swiglu_quant_v2.md).
    """
    left = unpacked_int4(x) if x.dtype is torch.int32 else x
    factor = factors(weight_scale)
    refuse(
        "npu_grouped_matmul_swiglu_quant",
        **{f"x in {left.dtype}": left.dtype is not torch.int8},
        **{"scales by group without an assist matrix": assist is None and factor.dim() > 1},
    )
    if assist is None:
        return (left.double() @ weight.double()).float() * factor * x_scale.unsqueeze(-1)
    size = weight.shape[0] // factor.shape[0] if factor.dim() > 1 else 0
    scaled = dequantised(weight, by_group(factor, size, weight.shape[0]), None).double()
    return ((left.double() - 8) @ scaled + assist.double()).float() * x_scale.unsqueeze(-1)


def _of_groups(name: str, tensors: Tensors | None, groups: int) -> Sequence[torch.Tensor | None]:
    """A tensor for each group, from a list of them or from one tensor with a row for each."""
    if not tensors:
        return [None] * groups
    if len(tensors) == 1 and tensors[0].dim() > 1 and len(tensors[0]) == groups:
        return list(tensors[0].unbind(0))
    refuse("npu_grouped_matmul", **{f"{len(tensors)} of {name} for {groups} groups": len(tensors) != groups})
    return tensors


def _ends(group_list: torch.Tensor | Sequence[int] | None, kind: int | None) -> list[int]:
    if group_list is None:
        raise ValueError("npu_grouped_matmul needs group_list for this group_type")
    values = torch.as_tensor(group_list)
    if kind == 1:
        values = values.cumsum(0)
    elif kind:
        raise NotImplementedError(f"the simulated device does not compute group_list_type {kind}")
    return [int(value) for value in values.tolist()]


def _parts(tensors: Sequence[torch.Tensor], ends: Sequence[int], dim: int) -> list[torch.Tensor]:
    if len(tensors) > 1:
        return list(tensors)
    starts = [0, *ends[:-1]]
    return [tensors[0].narrow(dim, start, end - start) for start, end in zip(starts, ends, strict=True)]
