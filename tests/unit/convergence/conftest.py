"""Synthetic reward curves, as measured ones look: a logistic rise with AR(1) noise and between-run variation."""

from __future__ import annotations

import math

import numpy as np
import pytest

STEPS = 60


def curve(rng: np.random.Generator, kind: str = "healthy") -> dict[str, list[float]]:
    steps = np.arange(STEPS)
    middle, width = 18 * np.exp(rng.normal(0, 0.12)), 6 * np.exp(rng.normal(0, 0.1))
    start, plateau, noise = 0.15 + rng.normal(0, 0.01), 0.85 + rng.normal(0, 0.025), 0.04
    if kind == "slower":
        middle, width = 2 * middle, 2 * width
    mean = start + (plateau - start) / (1 + np.exp(-(steps - middle) / width))
    if kind == "flat":
        mean = np.full(STEPS, start)
    elif kind == "declines":
        mean = start * np.exp(-steps / 20)
    elif kind == "late collapse":
        mean = np.where(steps > 40, np.maximum(start / 2, mean - (steps - 40) * 0.06), mean)
    elif kind == "oscillating":
        mean = mean * (1 - 0.35 * (np.sin(steps / 2.5) > 0.3))
    elif kind == "noisy":
        noise *= 3
    elif kind == "low plateau":
        mean = np.minimum(mean, plateau - 0.25)
    errors = np.zeros(STEPS)
    draws = rng.normal(0, 1, STEPS)
    for step in range(STEPS):
        errors[step] = (0.3 * errors[step - 1] if step else 0) + math.sqrt(1 - 0.09) * draws[step]
    reward = mean + noise * errors
    if kind == "NaN":
        reward[30:] = np.nan
    if kind == "stuck":
        reward = np.full(STEPS, -1.0)
    telemetry = {
        "entropy": 1.9 * np.exp(-steps / 25) * np.exp(rng.normal(0, 0.03)),
        "grad_norm": 0.3 * np.exp(rng.normal(0, 0.05) + rng.normal(0, 0.1, STEPS)),
        "clip_fraction": np.clip(0.1 + rng.normal(0, 0.005) + rng.normal(0, 0.01, STEPS), 0, 1),
        "mismatch": np.full(STEPS, 1e-7),
    }
    return {"reward": reward.tolist(), **{name: values.tolist() for name, values in telemetry.items()}}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def references(rng: np.random.Generator) -> list[dict[str, list[float]]]:
    return [curve(rng) for _ in range(20)]


@pytest.fixture
def make_curve():
    return curve
