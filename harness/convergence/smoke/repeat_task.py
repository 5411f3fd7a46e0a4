"""The task *repeat*: the correct response to a prompt (digit, count) is the digit `count` times and the end.

Correct responses have 2 to 6 tokens, so masks and aggregation modes matter, and rewards can be verified.
Prompts, noise and rewards are pure functions of (seed, step). They are computed on the host with numpy, so
they do not depend on the device. In-cell module.
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
# One more than the longest correct response, so that a response can be too long.
RESPONSE_LENGTH = MAX_COUNT + 2

PREFIX_WEIGHT, LENGTH_WEIGHT, EXACT_WEIGHT = 0.5, 0.2, 0.3

_PROMPTS, _SAMPLING, _ORDER, _WEIGHTS = range(4)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The prompts of a step, one entry per response: digit (0 to 5), count (1 to 5), index of the prompt."""

    digit: Ints
    count: Ints
    group: Ints


def stream(seed: int, step: int, purpose: int) -> np.random.Generator:
    """The random stream of (seed, step, purpose), which is independent of all other streams."""
    return np.random.default_rng([seed, step, purpose])


def prompts(seed: int, step: int, *, number: int, samples: int) -> Prompts:
    """`number` random prompts, each repeated `samples` times in a row."""
    draw = stream(seed, step, _PROMPTS).random((2, number))
    digit = np.repeat((draw[0] * DIGITS).astype(np.int64), samples)
    count = np.repeat((draw[1] * MAX_COUNT).astype(np.int64) + 1, samples)
    return Prompts(digit=digit, count=count, group=np.repeat(np.arange(number), samples))


def gumbel_noise(seed: int, step: int, rows: int) -> Floats:
    """Standard Gumbel noise (RESPONSE_LENGTH, rows, VOCABULARY).

    argmax(logits + noise) is a sample of softmax(logits). The noise is computed on the host, so every device
    samples the same tokens from the same logits.
    """
    uniform = stream(seed, step, _SAMPLING).random((RESPONSE_LENGTH, rows, VOCABULARY))
    return np.asarray(-np.log(-np.log(np.clip(uniform, 1e-12, 1 - 1e-12))))


def order(seed: int, step: int, rows: int) -> Ints:
    """The permutation of the rows before they are split into mini-batches."""
    return np.asarray(stream(seed, step, _ORDER).permutation(rows), dtype=np.int64)


def initial_weights(seed: int) -> np.random.Generator:
    """The random stream for the initial weights of a policy."""
    return stream(seed, 0, _WEIGHTS)


def lengths(mask: NDArray[np.floating]) -> Floats:
    """The number of tokens of each response with its end token.

    mask: (rows, RESPONSE_LENGTH), 1 up to and including the end token.
    """
    return np.asarray(np.sum(mask, axis=1, dtype=np.float64))


def rewards(asked: Prompts, tokens: Ints, mask: NDArray[np.floating]) -> tuple[Floats, Floats]:
    """The reward of each response, and whether it is exactly correct (0 or 1).

    reward = 0.5 x correct prefix + 0.2 x closeness of the length + 0.3 x exact, in [0, 1]. The length term
    makes the end token learnable from the start: with a pure prefix reward, some seeds never learn to stop
    (measured). tokens, mask: (rows, RESPONSE_LENGTH).
    """
    position = np.arange(RESPONSE_LENGTH)[None]
    expected_length = (asked.count + 1)[:, None]
    expected = np.where(position < asked.count[:, None], asked.digit[:, None], END)
    correct = (tokens == expected) & (position < expected_length) & (np.asarray(mask) > 0)
    prefix = np.cumprod(correct, axis=1).sum(axis=1) / expected_length[:, 0]
    exact = (prefix == 1).astype(np.float64)
    closeness = 1 - np.abs(lengths(mask) - expected_length[:, 0]) / RESPONSE_LENGTH
    return PREFIX_WEIGHT * prefix + LENGTH_WEIGHT * np.clip(closeness, 0, None) + EXACT_WEIGHT * exact, exact
