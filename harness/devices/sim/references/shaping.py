"""Operators of torch_npu that move, choose, order and replace elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.packed_bits import packed_bits, unpacked_bits
from harness.devices.sim.references.precision import dtype_of, refuse


def npu_broadcast(input: torch.Tensor, size: Sequence[int]) -> torch.Tensor:  # noqa: A002 - the operator's name
    """The input, repeated along dimensions of size 1."""
    return input.expand(list(size)).contiguous()


def npu_transpose(
    input: torch.Tensor,  # noqa: A002
    perm: Sequence[int],
    require_contiguous: bool = True,  # noqa: ARG001 - the result always is
) -> torch.Tensor:
    """The input with its dimensions in this order."""
    return input.permute(list(perm)).contiguous()


def npu_confusion_transpose(
    input: torch.Tensor,  # noqa: A002
    perm: Sequence[int],
    shape: Sequence[int],
    transpose_first: bool,
) -> torch.Tensor:
    """The input with dimensions in another order, and reshaped before or after that."""
    if transpose_first:
        return input.permute(list(perm)).reshape(list(shape)).contiguous()
    return input.reshape(list(shape)).permute(list(perm)).contiguous()


def npu_confusion_transpose_backward(
    grad: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """Gradient for the input, whose shape is `shape`. transpose_first: the opposite of the forward's."""
    back = sorted(range(len(perm)), key=lambda place: perm[place])
    if transpose_first:
        return grad.permute(back).reshape(list(shape)).contiguous()
    return grad.reshape([shape[place] for place in perm]).permute(back).contiguous()


def npu_reshape(
    input: torch.Tensor,  # noqa: A002
    shape: Sequence[int],
    can_refresh: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """A copy in this shape."""
    return input.reshape(list(shape)).clone()


def npu_slice(input: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:  # noqa: A002
    """The block with these sizes at these offsets; -1 means all that is left."""
    for dim, (start, length) in enumerate(zip(offsets, size, strict=True)):
        input = input.narrow(dim, start, input.shape[dim] - start if length == -1 else length)  # noqa: A001
    return input.contiguous()


def npu_pad(input: torch.Tensor, paddings: Sequence[int]) -> torch.Tensor:  # noqa: A002
    """The input with zeros around it: before and after the first dimension, then the second, and so on."""
    # Dimensions without numbers get no zeros.
    counts = [*paddings, *[0] * (2 * input.dim() - len(paddings))]
    pairs = [counts[i : i + 2] for i in range(0, len(counts), 2)]
    return torch.nn.functional.pad(input, [count for pair in reversed(pairs) for count in pair])


def npu_indexing(
    input: torch.Tensor,  # noqa: A002
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> torch.Tensor:
    """input[begin:end:strides]. In a mask, bit i ignores the begin or end of dimension i."""
    refuse(
        "npu_indexing",
        ellipsis_mask=ellipsis_mask,
        new_axis_mask=new_axis_mask,
        shrink_axis_mask=shrink_axis_mask,
    )
    slices = [
        slice(None if begin_mask >> dim & 1 else first, None if end_mask >> dim & 1 else last, step)
        for dim, (first, last, step) in enumerate(zip(begin, end, strides, strict=True))
    ]
    return input[tuple(slices)].contiguous()


def npu_one_hot(
    input: torch.Tensor,  # noqa: A002
    num_classes: int = -1,
    depth: int = 1,
    on_value: float = 1,
    off_value: float = 0,
) -> torch.Tensor:
    """`on_value` at the class and `off_value` elsewhere, in float32 and `depth` long.

    num_classes is, against its name, the dimension of the result; only the last one is supported.
    """
    refuse("npu_one_hot", num_classes=num_classes != -1)
    is_class = input.unsqueeze(-1) == torch.arange(depth, dtype=input.dtype)
    return torch.where(is_class, float(on_value), float(off_value))


def npu_sort_v2(input: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:  # noqa: A002
    """The sorted values."""
    return input.sort(dim, descending).values


def largest(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
    """The largest values along a dimension, and their indices in int32."""
    values, indices = input.max(dim, keepdim)
    return values, indices.int()


def smallest(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
    """The smallest values along a dimension, and their indices in int32."""
    values, indices = input.min(dim, keepdim)
    return values, indices.int()


def chosen_backward(
    grad: torch.Tensor, dim: int, indices: torch.Tensor, sizes: Sequence[int], keepdim: bool
) -> torch.Tensor:
    """Gradient for the input of `largest` and `smallest`."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(list(sizes)).scatter_(dim, indices.long(), grad)


def npu_gather_backward(
    grad: torch.Tensor, self_size: Sequence[int], dim: int, index: torch.Tensor, sparse_grad: bool
) -> torch.Tensor:
    """Gradient for the input of aten::gather."""
    refuse("npu_gather_backward", sparse_grad=sparse_grad)
    summed = grad.float() if grad.dtype in {torch.float16, torch.bfloat16} else grad
    return summed.new_zeros(list(self_size)).scatter_add_(dim, index.long(), summed).to(grad.dtype)


def npu_gather_sparse_index(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """The rows of the input with these indices."""
    return input[index.long()]


def npu_gather_sparse_index_backward(
    grad: torch.Tensor, self_sizes: Sequence[int], index: torch.Tensor
) -> torch.Tensor:
    """Gradient for the input of `npu_gather_sparse_index`."""
    rows = grad.reshape(-1, *self_sizes[1:])
    summed = rows.float() if grad.dtype in {torch.float16, torch.bfloat16} else rows
    result = summed.new_zeros(list(self_sizes)).index_add_(0, index.reshape(-1).long(), summed)
    return result.to(grad.dtype)


def npu_scatter_nd_update_(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """Replace the slices at `indices` (..., k), which index the first k dimensions."""
    input[tuple(indices.long().unbind(-1))] = updates.to(input.dtype)
    return input


def npu_scatter_nd_update(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
) -> torch.Tensor:
    """A copy of the input with other slices at `indices`."""
    return npu_scatter_nd_update_(input.clone(), indices, updates)


def scatter_update_(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """For each entry of the first dimension, write its updates at its index along `axis`."""
    if indices.dim() != 1:
        raise NotImplementedError(
            "the simulated device does not compute scatter_update with indices of pairs"
        )
    for row, start in enumerate(indices.tolist()):
        along = (axis if axis >= 0 else axis + input.dim()) - 1
        input[row].narrow(along, start, updates[row].shape[along]).copy_(updates[row])
    return input


def scatter_update(
    input: torch.Tensor,  # noqa: A002
    indices: torch.Tensor,
    updates: torch.Tensor,
    axis: int,
) -> torch.Tensor:
    """A copy of the input that `scatter_update_` has changed."""
    return scatter_update_(input.clone(), indices, updates, axis)


def npu_masked_fill_range(
    self: torch.Tensor, start: torch.Tensor, end: torch.Tensor, value: torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """A copy with value[i] from start[i, j] to before end[i, j] along `axis`.

    If `axis` is the last of several dimensions, j is the number of the first one; otherwise a range holds for
    all numbers of the others (the golden of op-plugin's test_masked_fill_range.py).
    """
    result = self.clone()
    axis %= self.dim()
    places = torch.arange(self.shape[axis])
    along = [1] * self.dim()
    along[axis] = -1
    is_by_row = axis == self.dim() - 1 and self.dim() > 1
    for i, j in torch.cartesian_prod(torch.arange(start.shape[0]), torch.arange(start.shape[1])).tolist():
        is_within = (places >= start[i, j]) & (places < end[i, j])
        target = result[j] if is_by_row else result
        target.masked_fill_(is_within.view(along[1:] if is_by_row else along), value[i].item())
    return result


def npu_sign_bits_pack(self: torch.Tensor, size: int) -> torch.Tensor:
    """(size, bytes): a bit for each number, 1 unless it is negative, the first in the lowest bit."""
    return packed_bits(self >= 0).view(size, -1)


def npu_sign_bits_unpack(input: torch.Tensor, size: int, dtype: int | torch.dtype) -> torch.Tensor:  # noqa: A002
    """(size, numbers): 1 for each bit, and -1 for each that is 0, the lowest bit first."""
    return (unpacked_bits(input).to(dtype_of(dtype)) * 2 - 1).view(size, -1)
