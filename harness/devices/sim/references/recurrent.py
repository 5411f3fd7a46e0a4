"""Recurrent layers: fused cells, and the operators that torch_npu's own formulas of LSTM call.

A packed sequence of torch_npu keeps its padding: its data is (longest * sequences, features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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


def _through_cell(
    gates: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    squashed: torch.Tensor,
    before: torch.Tensor,
    to_hidden: torch.Tensor,
    to_cell: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the gates before their activation, one after the other, and of the new cell state.

    gates: input, forget, cell and output, activated. squashed: tanh of the new cell state. before: the cell
    state of the step before. to_hidden, to_cell: gradients of the new states.
    """
    i, f, g, o = gates
    cell = to_hidden * o * (1 - squashed * squashed)
    cell = cell if to_cell is None else cell + wide(to_cell)
    parts = [
        cell * g * i * (1 - i),
        cell * before * f * (1 - f),
        cell * i * (1 - g * g),
        to_hidden * squashed * o * (1 - o),
    ]
    return torch.cat(parts, -1), cell


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
    for_gates, to_cell = _through_cell((i, f, g, o), squashed, wide(cx), to_hidden, grad_cy)
    dtype = workspace.dtype
    for_bias = for_gates.sum(0) if has_bias else for_gates.new_empty(0)
    return for_gates.to(dtype), (to_cell * f).to(cx.dtype), for_bias.to(dtype)


def pack_padded_sequence(
    x: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data with its padding up to the longest sequence, and how many sequences each step has."""
    steps = x.transpose(0, 1) if batch_first else x
    longest = int(lengths[0])
    counts = (lengths.view(1, -1) > torch.arange(min(longest, steps.shape[0])).view(-1, 1)).sum(1)
    return steps[:longest].reshape(-1, *x.shape[2:]).clone(), counts


_Eight = tuple[torch.Tensor, ...]


def _steps(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    mask: torch.Tensor | None = None,
    reverse: bool = False,
) -> Iterator[tuple[int, _Eight]]:
    """The number of each step of one layer in one direction, with y, h, c, the gates i, j, f, o and tanh(c).

    x: (steps, sequences, features). weight: (features + hidden, 4 * hidden). Where the mask is 0, the states
    stay and y is 0.
    """
    inputs, recurrent = weight[: x.shape[-1]], weight[x.shape[-1] :]
    for step in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        i, f, j, o = (x[step] @ inputs + h @ recurrent + bias).chunk(4, -1)
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        cell = f * c + i * j
        squashed = cell.tanh()
        hidden = y = o * squashed
        if mask is not None:
            valid = mask[step].bool()
            y, hidden, cell = y * valid, torch.where(valid, hidden, h), torch.where(valid, cell, c)
        h, c = hidden, cell
        yield step, (y, h, c, i, j, f, o, squashed)


def npu_lstm(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    weight: torch.Tensor,
    bias: torch.Tensor,
    seq_mask: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    has_biases: bool,  # noqa: ARG001 - without biases, zeros are given
    num_layers: int,  # noqa: ARG001 - each layer and direction is a call
    dropout: float,  # noqa: ARG001 - torch_npu passes it on to no kernel
    train: bool,  # noqa: ARG001
    bidirectional: bool,  # noqa: ARG001
    batch_first: bool,  # noqa: ARG001
    flag_seq: bool,
    direction: bool,
) -> _Eight:
    """One layer of an LSTM in one direction, the second if `direction`."""
    inputs, weights, biases, hidden, cell = (wide(one) for one in (input, weight, bias, h[0], c[0]))
    mask = seq_mask if flag_seq else None
    results = tuple(input.new_empty(*input.shape[:2], h.shape[-1]) for _ in range(8))
    for step, values in _steps(inputs, weights, biases, hidden, cell, mask, direction):
        for result, value in zip(results, values, strict=True):
            result[step] = value
    return results


def npu_lstm_data(
    input: torch.Tensor,  # noqa: A002
    batch_sizes: torch.Tensor,  # noqa: ARG001 - the mask was made of them
    *others: Any,
    **named: Any,
) -> _Eight:
    """`npu_lstm` of a packed sequence."""
    return npu_lstm(input, *others, **named)


def _gradients(
    forward: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, ...]:
    """Gradients for `inputs`, each in its type, by autograd of `forward`."""
    with torch.enable_grad():
        leaves = [wide(tensor.detach()).requires_grad_() for tensor in inputs]
        results = forward(*leaves)
        both = zip(results, grads, strict=True)
        pairs = [(result, wide(grad)) for result, grad in both if grad is not None]
        outputs, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
    return tuple(
        torch.zeros_like(tensor) if one is None else one.to(tensor.dtype)
        for one, tensor in zip(found, inputs, strict=True)
    )


def _lstm_gradients(
    grads: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
    mask: torch.Tensor | None,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Gradients of input, weight, bias and both states.

    Of the gradients for the states of each step, torch_npu passes on those of the last one, whichever the
    direction is.
    """

    def forward(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, weight, bias, h, c = leaves
        steps = dict(_steps(x, weight, bias, h[0], c[0], mask, reverse))
        _, hidden, cell, *_ = steps[0 if reverse else x.shape[0] - 1]
        return torch.stack([steps[step][0] for step in range(x.shape[0])]), hidden, cell

    grad_y, grad_h, grad_c = grads
    return _gradients(
        forward, inputs, (grad_y, *(None if grad is None else grad[-1] for grad in (grad_h, grad_c)))
    )


def npu_lstm_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    *_saved: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients of `npu_lstm` for input, weight, bias and both states."""
    return _lstm_gradients((grady, gradh, gradc), (input, weight, bias, hx, cx), None, False)


def npu_lstm_data_backward(
    grady_opt: torch.Tensor | None,
    gradh_opt: torch.Tensor | None,
    gradc_opt: torch.Tensor | None,
    input: torch.Tensor,  # noqa: A002
    batch_sizes: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    init_h: torch.Tensor,
    init_c: torch.Tensor,
    *saved: Any,
) -> tuple[torch.Tensor, ...]:
    """Gradients of `npu_lstm_data`; the last argument is the direction."""
    sequences = torch.arange(input.shape[1], device=batch_sizes.device)
    mask = (batch_sizes.view(-1, 1) > sequences).unsqueeze(-1)
    grads, inputs = (grady_opt, gradh_opt, gradc_opt), (input, weight, bias, init_h, init_c)
    return _lstm_gradients(grads, inputs, mask, bool(saved[-1]))


def npu_lstm_cell(
    input: torch.Tensor,  # noqa: A002
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> _Eight:
    """One step of an LSTM: y, the states, the gates i, j, f, o and tanh(c). y and the gates have a step."""
    bias = torch.zeros(()) if b_ih is None or b_hh is None else wide((b_ih + b_hh).to(input.dtype))
    weight = torch.cat([wide(w_ih), wide(w_hh)])
    ((_, (y, hidden, cell, *gates)),) = _steps(wide(input)[None], weight, bias, wide(h), wide(c))
    given = (y[None], hidden, cell, *(gate[None] for gate in gates))
    return tuple(result.to(input.dtype) for result in given)


def npu_lstm_cell_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,  # noqa: A002
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    y_output: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients of `npu_lstm_cell` for input, both weights, biases and states, by its saved gates."""
    del h_output, c_output
    states = torch.zeros_like(y_output[0]) if gradh is None else gradh
    to_hidden = wide(states) if grady is None else wide(states) + wide(grady[0])
    i, j, f, o, squashed = (wide(gate[0]) for gate in (i, j, f, o, tanhc))
    for_gates, to_cell = _through_cell((i, f, j, o), squashed, wide(c), to_hidden, gradc)
    bias = for_gates.sum(0).to(input.dtype)
    found = (for_gates @ wide(w_ih).T, wide(input).T @ for_gates, wide(h).T @ for_gates)
    states_found = (for_gates @ wide(w_hh).T, to_cell * f)
    of = (input, w_ih, w_hh, h, c)
    x, inputs, recurrent, hidden, cell = (
        one.to(other.dtype) for one, other in zip((*found, *states_found), of, strict=True)
    )
    return x, inputs, recurrent, bias, bias.clone(), hidden, cell
