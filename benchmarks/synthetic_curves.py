"""Synthetic reward curves: a logistic rise, AR(1) noise, varying speed (12 %) and plateau (0.025)."""

from __future__ import annotations

import numpy as np

STEPS = 60
KINDS = (
    "healthy",
    "flat",
    "declines",
    "late collapse",
    "early collapse",
    "slower 2",
    "slower 1.5",
    "slower 1.25",
    "plateau -0.2",
    "plateau -0.1",
    "plateau -0.05",
    "offset +0.08",
    "offset -0.08",
    "offset +0.04",
    "oscillating",
    "noise 3",
    "NaN",
    "stuck",
)


def curve(rng: np.random.Generator, kind: str) -> dict[str, list[float]]:
    """One run of a kind; the number in its name is the size of the fault."""
    name, _, text = kind.partition(" ")
    size = float(text) if text.lstrip("+-").replace(".", "").isdigit() else 0.0
    steps = np.arange(STEPS)
    middle, width = 18 * np.exp(rng.normal(0, 0.12)), 6 * np.exp(rng.normal(0, 0.1))
    start, plateau = 0.15 + rng.normal(0, 0.01), 0.85 + rng.normal(0, 0.025)
    if name == "slower":
        middle, width = middle * size, width * size
    if name == "plateau":
        plateau += size
    rise = plateau - start
    mean = start + rise / (1 + np.exp(-(steps - middle) / width)) - rise / (1 + np.exp(middle / width))
    if name == "flat":
        mean = np.full(STEPS, start)
    elif name == "declines":
        mean = start * np.exp(-steps / 20)
    elif kind == "late collapse":
        mean = np.where(steps > 40, np.maximum(start / 2, mean - (steps - 40) * 0.06), mean)
    elif kind == "early collapse":
        mean = np.where(steps > 22, np.maximum(0.02, mean - (steps - 22) * 0.05), mean)
    elif name == "oscillating":
        mean = mean * (1 - 0.35 * (np.sin(steps / 2.5) > 0.3))
    elif name == "offset":
        mean = mean + size
    noise = 0.04 * (size if name == "noise" else 1)
    draws, errors = rng.normal(0, 1, STEPS), np.zeros(STEPS)
    errors[0] = draws[0]
    for step in range(1, STEPS):
        errors[step] = 0.3 * errors[step - 1] + np.sqrt(1 - 0.09) * draws[step]
    reward = mean + noise * errors
    if name == "NaN":
        reward[rng.integers(5, STEPS) :] = np.nan
    if name == "stuck":
        reward = np.full(STEPS, -1.0)
    return {"reward": reward.tolist()}
