"""Inputs of the battery's cases: response masks, log-probabilities, advantages, rounded to the io format of a
contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import Array, Contract, round_to

GROUP = 4
DEEPEST_LOG_PROB = 12.0
"""Log-probability of a token that is sampled once in 160,000 draws. It shapes inputs; no verdict depends on
it."""
LEAST_LOPSIDED = 0.2
"""The sum of the advantages must be at least this share of their magnitudes. It shapes inputs; no verdict
depends on it."""


def mask(rng: np.random.Generator, batch: int, tokens: int, style: str = "mixed") -> Array:
    """A response mask (batch, tokens).

    mixed: lengths from tokens/8 to tokens. skew: most responses short, the first one full. edge: the first
        row empty, the second with one token, the third full. turns: as mixed, with tool outputs masked
        inside. full: no padding.
    """
    if style == "full":
        lengths = np.full(batch, tokens)
    elif style == "skew":
        lengths = np.maximum(1, (tokens * rng.random(batch) ** 4).astype(int))
        lengths[0] = tokens
    elif style == "edge":
        lengths = rng.integers(1, tokens + 1, batch)
        lengths[:3] = (0, 1, tokens)
    else:
        lengths = rng.integers(max(1, tokens // 8), tokens + 1, batch)
    result = (np.arange(tokens)[None] < lengths[:, None]).astype(np.float64)
    if style == "turns":
        result *= rng.random((batch, tokens)) > 0.3
        result[:, 0] = 1.0
    return result


def old_log_probs(rng: np.random.Generator, batch: int, tokens: int) -> Array:
    """Log-probabilities of sampled tokens: negative exponential random numbers of mean one nat, as a
    calibrated model has on average."""
    return -rng.gamma(1.0, 1.0, (batch, tokens)).clip(1e-4, DEEPEST_LOG_PROB)


def advantages(rng: np.random.Generator, batch: int, tokens: int, style: str) -> Array:
    """Advantages (batch, tokens).

    group: those of a micro-batch from a shuffled batch of twice its size, with binary rewards in groups of
        four. Every group has a right and a wrong answer, except the last one, in which all are right. They do
        not cancel.
    sequence: one normal random number per row. alternating: of alternating sign. token: one per token.
    """
    if style == "token":
        return rng.normal(size=(batch, tokens))
    if style == "sequence":
        return np.repeat(rng.normal(size=(batch, 1)), tokens, axis=1)
    if style == "alternating":
        signs = np.where(np.arange(batch)[:, None] % 2 == 0, 1.0, -1.0)
        return np.repeat(signs * np.abs(rng.normal(size=(batch, 1))), tokens, axis=1)
    rewards = (rng.random((2 * batch // GROUP, GROUP)) < 0.5).astype(np.float64)
    rewards[:, 0], rewards[:, 1] = 1.0, 0.0
    rewards[-1] = 1.0
    deviation = rewards.std(axis=1, ddof=1, keepdims=True)
    normalised = (rewards - rewards.mean(axis=1, keepdims=True)) / (deviation + 1e-6)
    return np.repeat(_not_cancelling(rng, normalised.reshape(-1), batch)[:, None], tokens, axis=1)


def _not_cancelling(rng: np.random.Generator, advantages: Array, count: int) -> Array:
    """`count` of the advantages, drawn until they do not cancel.

    If each sequence has the same weight and the ratios are near 1, the loss of a micro-batch whose advantages
    cancel consists only of the distances of the ratios from 1. These are far below the rounding errors of the
    terms, so its value would show nothing.
    """
    while True:
        chosen = rng.permutation(advantages)[:count]
        if abs(chosen.sum()) >= LEAST_LOPSIDED * np.abs(chosen).sum():
            return np.asarray(chosen)


def token_drift(rng: np.random.Generator, batch: int, tokens: int, spread: float) -> Array:
    """Log-ratios that are independent for each token."""
    return rng.normal(0.0, spread, (batch, tokens))


def row_drift(rng: np.random.Generator, batch: int, tokens: int, row: float, token: float) -> Array:
    """Log-ratios with a common part for each sequence, which determines the sequence-level ratio."""
    return rng.normal(0.0, row, (batch, 1)) + rng.normal(0.0, token, (batch, tokens))


def recentred(drift: Array, mask: Array, means: Sequence[float]) -> Array:
    """Log-ratios whose mean over the valid tokens of row i is means[i % len(means)]."""
    lengths = np.maximum(mask.sum(axis=1, keepdims=True), 1.0)
    targets = np.resize(np.asarray(means), (mask.shape[0], 1))
    return np.asarray(drift - (drift * mask).sum(axis=1, keepdims=True) / lengths + targets)


def for_device(contract: Contract, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Round floating-point inputs to the io format and store them as float32, which represents every io
    format exactly."""
    return {
        name: round_to(array, contract.io).astype(np.float32)
        if array.dtype.kind == "f"
        else array.astype(np.int64)
        for name, array in arrays.items()
    }
