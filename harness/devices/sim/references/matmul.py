"""Matrix multiplications that are operators only in torch_npu."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.precision import refuse, wide


def matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients for both factors: aten::matmul_backward, which only torch_npu has for dense tensors.

    A gradient is empty where `mask` is False. A vector counts as a row (left) or as a column (right). The
    gradient of a matrix that every matrix of a batch was multiplied with is one product, as in torch_npu;
    that of a batch of another shape is a sum of products.
    """
    left = self.unsqueeze(0) if self.dim() == 1 else _without_ones(self)
    right = other.unsqueeze(1) if other.dim() == 1 else _without_ones(other)
    if self.dim() == 1:
        grad = grad.unsqueeze(-2) if other.dim() > 1 else grad.reshape(1, 1)
    if other.dim() == 1 and self.dim() > 1:
        grad = grad.unsqueeze(-1)
    empty = self.new_empty(0)
    for_left = for_right = empty
    if mask[0] and left.dim() == 2 and right.dim() > 2:
        rows = grad.movedim(-2, 0).reshape(left.shape[0], -1)
        for_left = rows @ right.transpose(-1, -2).reshape(-1, left.shape[1])
    elif mask[0]:
        for_left = (grad @ right.transpose(-1, -2)).sum_to_size(left.shape)
    if mask[1] and right.dim() == 2 and left.dim() > 2:
        for_right = left.reshape(-1, left.shape[-1]).T @ grad.reshape(-1, grad.shape[-1])
    elif mask[1]:
        for_right = (left.transpose(-1, -2) @ grad).sum_to_size(right.shape)
    return (
        for_left.reshape(self.shape) if mask[0] else empty,
        for_right.reshape(other.shape) if mask[1] else empty.clone(),
    )


def _without_ones(factor: torch.Tensor) -> torch.Tensor:
    while factor.dim() > 2 and factor.shape[0] == 1:
        factor = factor.squeeze(0)
    return factor


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


def npu_transpose_batchmatmul(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> torch.Tensor:
    """The batched product of permuted factors, permuted, by default to (m, batch, n)."""
    refuse(
        "npu_transpose_batchmatmul",
        bias=bias is not None,
        scale=scale is not None,
        batch_split_factor=batch_split_factor not in {None, 1},
    )
    left = wide(input).permute(list(perm_x1 or (0, 1, 2)))
    right = wide(weight).permute(list(perm_x2 or (0, 1, 2)))
    return (left @ right).to(input.dtype).permute(list(perm_y or (1, 0, 2))).contiguous()
