"""Around the model: which tokens may be drawn, which part of the vocabulary a card has."""

from __future__ import annotations

import torch

from harness.devices.sim.references.precision import wide


def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits (rows, vocabulary) with minus infinity outside the k largest, then outside the top p.

    The top p are the most likely tokens whose probabilities, of what k left, first reach p; at least one.
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
    """Token ids as rows of this card's part of the embedding, and True for those it has not (row 0).

    The part holds its original tokens, padding, then its added tokens, as vllm's VocabParallelEmbedding.
    """
    original = (input >= org_vocab_start_index) & (input < org_vocab_end_index)
    added = (input >= added_vocab_start_index) & (input < added_vocab_end_index)
    behind = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    rows = torch.where(original, input - org_vocab_start_index, input - added_vocab_start_index + behind)
    here = original | added
    return torch.where(here, rows, torch.zeros_like(rows)), ~here
