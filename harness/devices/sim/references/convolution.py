"""Convolutions that are operators of torch_npu, which its own kernels of aten::convolution call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def convolution(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A convolution in one to three dimensions."""
    none = [0] * len(stride)
    return torch.convolution(
        input, weight, bias, list(stride), list(padding), list(dilation), False, none, groups
    )


def transposed(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A transposed convolution in one to three dimensions."""
    return torch.convolution(
        input,
        weight,
        bias,
        list(stride),
        list(padding),
        list(dilation),
        True,
        list(output_padding),
        groups,
    )


def convolution_backward(
    input: torch.Tensor,  # noqa: A002
    grad: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    """Gradients for input, weight and bias, as far as `output_mask` asks for them."""
    return _backward(input, grad, weight, stride, padding, dilation, None, groups, output_mask)


def transposed_backward(
    input: torch.Tensor,  # noqa: A002
    grad: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    """Gradients of `transposed`."""
    return _backward(input, grad, weight, stride, padding, dilation, output_padding, groups, output_mask)


def _backward(
    x: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int] | None,
    groups: int,
    output_mask: Sequence[bool],
) -> _Gradients:
    backward: Callable[..., _Gradients] = torch.ops.aten.convolution_backward
    return backward(
        grad,
        x,
        weight,
        [grad.shape[1]],
        list(stride),
        list(padding),
        list(dilation),
        output_padding is not None,
        list(output_padding or [0] * len(stride)),
        groups,
        list(output_mask),
    )
