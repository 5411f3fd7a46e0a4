"""The *repeat* task: a prompt (digit, count) asks for the digit written count times, then end of sequence.

Answers are 2 to 6 tokens long, so masks and aggregation modes matter; the reward is verifiable. Prompts,
noise and rewards are pure functions of (seed, step) made on the host with numpy, so that they are the same
for every device. In-cell module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DIGITS = 6
MAX_COUNT = 5
END = DIGITS
VOCABULARY = DIGITS + 1
START = VOCABULARY
# One more than the longest right answer, so that an answer can be too long.
RESPONSE_LENGTH = MAX_COUNT + 2

PREFIX_WEIGHT, LENGTH_WEIGHT, EXACT_WEIGHT = 0.5, 0.2, 0.3

_PROMPTS, _SAMPLING, _ORDER, _WEIGHTS = range(4)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Prompts of one step, one entry per response: digit (0..5), count (1..5), prompt's index."""

    digit: Ints
    count: Ints
    group: Ints


def stream(seed: int, step: int, purpose: int) -> np.random.Generator:
    """An independent random stream per (seed, step, purpose): what one consumes shifts no other."""
    return np.random.default_rng([seed, step, purpose])


def prompts(seed: int, step: int, *, number: int, samples: int) -> Prompts:
    """`number` random prompts, each repeated `samples` times in a row."""
    draw = stream(seed, step, _PROMPTS).random((2, number))
    digit = np.repeat((draw[0] * DIGITS).astype(np.int64), samples)
    count = np.repeat((draw[1] * MAX_COUNT).astype(np.int64) + 1, samples)
    return Prompts(digit=digit, count=count, group=np.repeat(np.arange(number), samples))


def gumbel_noise(seed: int, step: int, rows: int) -> Floats:
    """Standard Gumbel noise (RESPONSE_LENGTH, rows, VOCABULARY): argmax(logits + noise) samples
    softmax(logits).

    With the noise made here, every device samples the same tokens from the same logits.
    """
    uniform = stream(seed, step, _SAMPLING).random((RESPONSE_LENGTH, rows, VOCABULARY))
    return np.asarray(-np.log(-np.log(np.clip(uniform, 1e-12, 1 - 1e-12))))


def order(seed: int, step: int, rows: int) -> Ints:
    """Permutation of the rows before they are cut into mini-batches."""
    return np.asarray(stream(seed, step, _ORDER).permutation(rows), dtype=np.int64)


def initial_weights(seed: int) -> np.random.Generator:
    """The stream a policy's initial weights are drawn from."""
    return stream(seed, 0, _WEIGHTS)


def lengths(mask: NDArray[np.floating]) -> Floats:
    """Tokens of each response with its end token; `mask` (rows, RESPONSE_LENGTH) is 1 up to that token."""
    return np.asarray(np.sum(mask, axis=1, dtype=np.float64))


def rewards(asked: Prompts, tokens: Ints, mask: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Reward and exactness (0 or 1) of each response; tokens and mask are (rows, RESPONSE_LENGTH).

    reward = 0.5 right prefix + 0.2 closeness of the length + 0.3 exact, in [0, 1]. The length term makes
    the end token learnable from the start: with a pure prefix reward some seeds never learn to stop (shared
    research).
    """
    position = np.arange(RESPONSE_LENGTH)[None]
    wanted_length = (asked.count + 1)[:, None]
    wanted = np.where(position < asked.count[:, None], asked.digit[:, None], END)
    right = (tokens == wanted) & (position < wanted_length) & (np.asarray(mask) > 0)
    prefix = np.cumprod(right, axis=1).sum(axis=1) / wanted_length[:, 0]
    exact = (prefix == 1).astype(np.float64)
    closeness = 1 - np.abs(lengths(mask) - wanted_length[:, 0]) / RESPONSE_LENGTH
    return PREFIX_WEIGHT * prefix + LENGTH_WEIGHT * np.clip(closeness, 0, None) + EXACT_WEIGHT * exact, exact
