"""Operators before and after the model: top-k/top-p sampling and the vocabulary-parallel embedding."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide


def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits (rows, vocabulary) with minus infinity outside the k largest, and then outside the top p.

    The top p are the most likely tokens until their probabilities, after top-k, sum up to p; at least one.
    """
    values, order = logits.sort(-1)
    if k is not None:
        allowed = k.long().clamp(1, values.shape[-1])
        smallest = values.gather(-1, (values.shape[-1] - allowed)[:, None])
        values = values.masked_fill(values < smallest, float("-inf"))
    if p is not None:
        below = torch.softmax(wide(values), -1).cumsum(-1) <= 1 - wide(p)[:, None]
        below[..., -1] = False
        values = values.masked_fill(below, float("-inf"))
    return torch.empty_like(logits).scatter_(-1, order, values)


def masked_input_and_mask(
    input: torch.Tensor,  # noqa: A002 - the operator's own argument name
    org_vocab_start_index: int,
    org_vocab_end_index: int,
    num_org_vocab_padding: int,
    added_vocab_start_index: int,
    added_vocab_end_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids as rows of this card's part of the embedding, and True for ids of other parts (row 0).

    As in vllm's VocabParallelEmbedding, a part has its original tokens, padding, and then its added tokens.
    """
    original = (input >= org_vocab_start_index) & (input < org_vocab_end_index)
    added = (input >= added_vocab_start_index) & (input < added_vocab_end_index)
    first_added = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    rows = torch.where(original, input - org_vocab_start_index, input - added_vocab_start_index + first_added)
    is_local = original | added
    return torch.where(is_local, rows, torch.zeros_like(rows)), ~is_local
