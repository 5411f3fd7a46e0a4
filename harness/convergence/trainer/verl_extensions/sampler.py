"""Samples from a causal language model on its device, with random numbers that do not depend on the device.

The noise of a response is computed on the host from the seed, the step, the prompt and the number of earlier
occurrences of this prompt. Equal logits therefore give equal samples on every device, in every batch and in
every order of arrival. In-cell module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SampledResponses:
    """Responses on the CPU: tokens (rows, response tokens), padded after the end; their log-probabilities."""

    tokens: Tensor
    log_probs: Tensor


class Noise:
    """Standard Gumbel noise for each response. Call `next_step` at the start of each training step."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = 0
        self._seen: Counter[tuple[int, ...]] = Counter()

    def next_step(self) -> None:
        """Give the same prompts new noise from now on."""
        self._step += 1
        self._seen.clear()

    def draw(self, prompts: Sequence[Sequence[int]], tokens: int, words: int) -> NDArray[np.float32]:
        """Noise of shape (rows, tokens, words). argmax(logits + noise) is a sample of softmax(logits)."""
        rows = []
        for prompt in map(tuple, prompts):
            key = [self._seed, self._step, self._seen[prompt], *prompt]
            self._seen[prompt] += 1
            uniform = np.random.default_rng(key).random((tokens, words))
            rows.append(-np.log(-np.log(np.clip(uniform, 1e-12, 1 - 1e-12))))
        return np.asarray(rows, dtype=np.float32)


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    noise: NDArray[np.float32],
    *,
    end: int,
    pad: int,
    temperature: float = 1.0,
) -> SampledResponses:
    """Sample a response to each prompt (token ids without padding) in float32.

    model: a transformers causal language model in eval mode; noise: (rows, response tokens, vocabulary).
    Each position evaluates the whole sequence again: for a few tokens that is cheaper than a KV cache.
    """
    device = next(model.parameters()).device
    width = max(map(len, prompts))
    padded = [[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    real = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    sequence, mask = torch.tensor(padded, device=device), torch.tensor(real, device=device)
    gumbel = torch.from_numpy(noise).to(device)
    ended = torch.zeros(len(padded), dtype=torch.bool, device=device)
    tokens, log_probs = [], []
    for position in range(noise.shape[1]):
        places = (mask.cumsum(dim=-1) - 1).clamp(min=0)
        logits = model(input_ids=sequence, attention_mask=mask, position_ids=places, use_cache=False).logits
        scores = torch.log_softmax(logits[:, -1].float() / temperature, dim=-1)
        token = (scores + gumbel[:, position]).argmax(dim=-1)
        tokens.append(token.masked_fill(ended, pad))
        log_probs.append(scores.gather(-1, token[:, None])[:, 0].masked_fill(ended, 0.0))
        sequence = torch.cat([sequence, tokens[-1][:, None]], dim=1)
        mask = torch.cat([mask, (~ended)[:, None].to(mask.dtype)], dim=1)
        ended = ended | (token == end)
    return SampledResponses(tokens=torch.stack(tokens, 1).cpu(), log_probs=torch.stack(log_probs, 1).cpu())
