"""The fused cells into which torch decomposes LSTM on devices. The CPU has no kernel for them."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden state, cell state, and the activated gates (n, 4 * hidden), which the backward needs.

    Gates are in the order of torch.nn.LSTM: input, forget, cell, output.
    """
    gates = wide(input_gates) + wide(hidden_gates)
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + wide(bias)
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cell = f * wide(cx) + i * g
    dtype = cx.dtype
    return (o * cell.tanh()).to(dtype), cell.to(dtype), torch.cat([i, f, g, o], -1).to(dtype)


def lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients for the gates, for cx, and for each of the two biases, which is empty without biases."""
    i, f, g, o = wide(workspace).chunk(4, -1)
    squashed = wide(cy).tanh()
    to_hidden = torch.zeros_like(squashed) if grad_hy is None else wide(grad_hy)
    to_cell = to_hidden * o * (1 - squashed * squashed)
    to_cell = to_cell if grad_cy is None else to_cell + wide(grad_cy)
    for_gates = torch.cat(
        [
            to_cell * g * i * (1 - i),
            to_cell * wide(cx) * f * (1 - f),
            to_cell * i * (1 - g * g),
            to_hidden * squashed * o * (1 - o),
        ],
        -1,
    )
    dtype = workspace.dtype
    for_bias = for_gates.sum(0) if has_bias else for_gates.new_empty(0)
    return for_gates.to(dtype), (to_cell * f).to(cx.dtype), for_bias.to(dtype)
