"""Matrix multiplications that are operators only in torch_npu."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import dtype_of, refuse, wide


def matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients for both factors: aten::matmul_backward, which only torch_npu has for dense tensors.

    A gradient is empty where `mask` is False. A vector counts as a row (left) or as a column (right).
    """
    left = self.unsqueeze(0) if self.dim() == 1 else self
    right = other.unsqueeze(1) if other.dim() == 1 else other
    if self.dim() == 1:
        grad = grad.unsqueeze(-2) if other.dim() > 1 else grad.reshape(1, 1)
    if other.dim() == 1 and self.dim() > 1:
        grad = grad.unsqueeze(-1)
    empty = self.new_empty(0)
    for_left = (
        (grad @ right.transpose(-1, -2)).sum_to_size(left.shape).reshape(self.shape) if mask[0] else empty
    )
    for_right = (
        (left.transpose(-1, -2) @ grad).sum_to_size(right.shape).reshape(other.shape)
        if mask[1]
        else empty.clone()
    )
    return for_left, for_right


def matmul_double_backward(
    grad_self: torch.Tensor | None,
    grad_other: torch.Tensor | None,
    grad_out: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    other: torch.Tensor,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of `matmul_backward`, for its `grad` and for both factors.

    grad_self and grad_other: the gradients for its two results.
    """
    for_grad = None
    if mask[0] and (grad_self is not None or grad_other is not None):
        parts = [] if grad_self is None else [torch.matmul(grad_self, other)]
        parts += [] if grad_other is None else [torch.matmul(input, grad_other)]
        for_grad = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    for_left = for_right = None
    if mask[1] and grad_other is not None:
        for_left = matmul_backward(grad_out, input, grad_other, (True, False))[0]
    if mask[2] and grad_self is not None:
        for_right = matmul_backward(grad_out, grad_self, other, (False, True))[1]
    return for_grad, for_left, for_right


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    output_dtype: int | torch.dtype | None = None,
    **others: object,
) -> list[torch.Tensor]:
    """One matmul for each group.

    group_list: the end of each group's rows (group_list_type 0) or their number (1). group_type -1: x[i] @
    weight[i]. 0: the rows of x are grouped; weight has the shape (groups, k, n) or is a list. 2: the summed
    dimension is grouped; the result has the shape (groups, m, n). split_item 2 and 3 return one tensor.
    """
    refuse(
        "npu_grouped_matmul", act_type=act_type, **{name: value for name, value in others.items() if value}
    )
    dtype = dtype_of(output_dtype) if output_dtype is not None else x[0].dtype
    if group_type in {None, -1}:
        refuse("npu_grouped_matmul", group_list=group_list is not None)
        products = [wide(left) @ wide(right) for left, right in zip(x, weight, strict=True)]
    elif group_type == 0:
        weights = weight[0].unbind(0) if len(weight) == 1 and weight[0].dim() > 2 else weight
        rows = x if len(x) > 1 else _parts(x, _ends(group_list, group_list_type), 0)
        products = [wide(left) @ wide(right) for left, right in zip(rows, weights, strict=True)]
    elif group_type == 2:
        ends = _ends(group_list, group_list_type)
        lefts, rights = _parts(x, ends, 1), _parts(weight, ends, 0)
        return [torch.stack([wide(a) @ wide(b) for a, b in zip(lefts, rights, strict=True)]).to(dtype)]
    else:
        raise NotImplementedError(
            f"the simulated device does not compute npu_grouped_matmul group_type {group_type}"
        )
    if bias:
        biases = bias[0].unbind(0) if len(bias) == 1 and bias[0].dim() > 1 else bias
        products = [product + wide(row) for product, row in zip(products, biases, strict=True)]
    results = [product.to(dtype) for product in products]
    return [torch.cat(results)] if split_item in {2, 3} else results


def matmul_add_fp32(x: torch.Tensor, weight: torch.Tensor, C: torch.Tensor) -> None:  # noqa: N803 - the operator's name for it
    """Add the transpose of x (k, m) times weight (k, n) to C (m, n), in place."""
    C.add_(wide(x).t() @ wide(weight))


def npu_bmmV2(  # noqa: N802 - the operator's own name
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    mat2: torch.Tensor,
    output_sizes: Sequence[int],
) -> torch.Tensor:
    """The batched product, which is viewed in `output_sizes` unless that is empty."""
    product = (wide(input) @ wide(mat2)).to(input.dtype)
    return product.reshape(list(output_sizes)) if output_sizes else product


def npu_bmm_v2_mat1_backward(
    grad: torch.Tensor,
    mat1: torch.Tensor,  # noqa: ARG001
    mat2: torch.Tensor,
    size: Sequence[int],
) -> torch.Tensor:
    """Gradient for the left factor, of this size."""
    return (wide(grad) @ wide(mat2).transpose(-2, -1)).sum_to_size(list(size)).to(grad.dtype)


def npu_bmm_v2_mat2_backward(
    grad: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,  # noqa: ARG001
    size: Sequence[int],
) -> torch.Tensor:
    """Gradient for the right factor, of this size."""
    return (wide(mat1).transpose(-2, -1) @ wide(grad)).sum_to_size(list(size)).to(grad.dtype)


def npu_linear(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """input @ weight.T + bias."""
    product = wide(input) @ wide(weight).t()
    return (product if bias is None else product + wide(bias)).to(input.dtype)


def npu_linear_backward(
    grad: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients for the input and the weight."""
    return (wide(grad) @ wide(weight)).to(input.dtype), (wide(grad).t() @ wide(input)).to(weight.dtype)


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
