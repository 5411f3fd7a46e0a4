"""The gated delta rule of linear attention, token by token.

Sources: torch_npu-npu_recurrent_gated_delta_rule.md and torch_npu-npu_chunk_gated_delta_rule.md of op-plugin.
The chunks of a kernel change the order of its sums, not the result.
"""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import refuse


def npu_recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention (T, nv, dv) of packed sequences; writes the state after each token to `state`.

    query, key: (T, nk, dk). value: (T, nv, dv). state: (blocks, nv, dv, dk). beta, g: (T, nv).
    gk: (T, nv, dk). ssm_state_indices: the block of each token. A sequence starts from the block of its last
    accepted token, by default its first.
    """
    refuse(
        "npu_recurrent_gated_delta_rule",
        **{"no actual_seq_lengths": actual_seq_lengths is None},
        **{"no ssm_state_indices": ssm_state_indices is None},
    )
    assert actual_seq_lengths is not None
    assert ssm_state_indices is not None
    blocks = ssm_state_indices.long()
    outputs = []
    start = 0
    for number, length in enumerate(actual_seq_lengths.tolist()):
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[number])
        rows = slice(start, start + length)
        found, states = _follow(
            state[blocks[start + accepted - 1]],
            *(one[rows] for one in (query, key, value)),
            *(None if one is None else one[rows] for one in (beta, g, gk)),
        )
        state[blocks[rows]] = torch.stack(states).to(state.dtype)
        outputs += found
        start += length
    return (torch.stack(outputs) * (1.0 if scale is None else scale)).to(torch.bfloat16)


def npu_recurrent_gated_delta_rule_functional(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    **options: torch.Tensor | float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_recurrent_gated_delta_rule` that leaves `state` alone and returns the new one."""
    after = state.clone()
    return npu_recurrent_gated_delta_rule(query, key, value, after, **options), after


def npu_chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    g: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention (T, nv, dv) of packed sequences, and the last state of each (sequences, nv, dv, dk)."""
    refuse(
        "npu_chunk_gated_delta_rule",
        **{"no initial_state": initial_state is None, "no actual_seq_lengths": actual_seq_lengths is None},
    )
    assert initial_state is not None
    assert actual_seq_lengths is not None
    outputs, last = [], []
    start = 0
    for state, length in zip(initial_state, actual_seq_lengths.tolist(), strict=True):
        rows = slice(start, start + length)
        found, states = _follow(
            state,
            *(one[rows] for one in (query, key, value)),
            *(None if one is None else one[rows] for one in (beta, g, None)),
        )
        outputs += found
        last.append(states[-1] if states else state)
        start += length
    attention = torch.stack(outputs) * (1.0 if scale is None else scale)
    return attention.to(torch.bfloat16), torch.stack(last).to(initial_state.dtype)


def _follow(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor | None,
    g: torch.Tensor | None,
    gk: torch.Tensor | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs (nv, dv) of one sequence, not scaled, and the state (nv, dv, dk) after each token."""
    state = state.float()
    repeats = value.shape[1] // key.shape[1]
    queries, keys = (one.float().repeat_interleave(repeats, 1) for one in (query, key))
    outputs, states = [], []
    for place, wanted in enumerate(value.float()):
        if g is not None:
            state = state * g[place].float().exp()[:, None, None]
        if gk is not None:
            state = state * gk[place].float().exp()[:, None, :]
        update = wanted - _times(state, keys[place])
        if beta is not None:
            update = update * beta[place].float()[:, None]
        state = state + update[:, :, None] * keys[place][:, None, :]
        outputs.append(_times(state, queries[place]))
        states.append(state)
    return outputs, states


def _times(state: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """state (nv, dv, dk) @ vector (nv, dk)."""
    return (state * vector[:, None, :]).sum(-1)
