"""Compares a run with its twin: the recorded run of the same seed, prompts and noise on the reference device.

The tiny training draws its random numbers on the host, so both runs are equal until rounding changes a
sampled token. Differences between seeds, which hide small faults from the bands, cancel out. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision import Deviation
from harness.convergence.decision.decision_rule import Rule

Floats = NDArray[np.float64]


def deviation(
    run: Mapping[str, Floats], twin: Mapping[str, Floats], spread: Mapping[str, Floats], rule: Rule
) -> Deviation | None:
    """The largest deviation in the first steps; None if run and twin share no series that varies there."""
    worst: Deviation | None = None
    for name in rule.twin_series:
        lines = [source.get(name) for source in (run, twin, spread)]
        if any(line is None for line in lines):
            continue
        mine, other, scale = (np.asarray(line)[: rule.twin_steps] for line in lines)
        for step in range(min(len(mine), len(other), len(scale))):
            if scale[step] > 0 and np.isfinite([mine[step], other[step]]).all():
                size = float(abs(mine[step] - other[step]) / scale[step])
                if worst is None or size > worst.size:
                    worst = Deviation(series=name, step=step, size=size, limit=rule.twin_limit)
    return worst
