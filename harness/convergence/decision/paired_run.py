"""Compares a run with its twin: the recorded run of the same seed, prompts and noise on the reference device.

The tiny training draws its random numbers on the host, so both runs are equal until rounding changes a
sampled token. Differences between seeds, which hide small faults from the bands, cancel out. A reference run
of the same seed is a twin, too; it is recognised by its first step. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision import Deviation
from harness.convergence.decision.decision_rule import Rule

Floats = NDArray[np.float64]

# What a step measures before the policy is updated. Equal entropies of some thousand tokens mean equal
# weights, prompts and samples; rewards and lengths of other samples would differ.
SAMPLED = ("reward", "entropy", "response_length", "zero_variance_groups")
# Above the rounding of a mean in fp32 and of recorded numbers (6 digits), below the change by one sampled
# token of some thousand.
SAME = 5e-6


def deviation(
    run: Mapping[str, Floats],
    twin: Mapping[str, Floats],
    spread: Mapping[str, Floats],
    rule: Rule,
    limit: float,
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
                    worst = Deviation(series=name, step=step, size=size, limit=limit)
    return worst


def same_start(
    run: Mapping[str, Floats], references: Sequence[Mapping[str, Floats]]
) -> Mapping[str, Floats] | None:
    """The reference run that sampled the same in its first step, or None.

    Needs the reward, the entropy and one more series of `SAMPLED`: rewards alone are too often equal.
    """
    for other in references:
        names = [name for name in SAMPLED if len(run.get(name, ())) and len(other.get(name, ()))]
        if len(names) > 2 and "reward" in names and "entropy" in names:
            pairs = ((float(run[name][0]), float(other[name][0])) for name in names)
            if all(abs(mine - theirs) <= SAME * max(abs(mine), abs(theirs)) for mine, theirs in pairs):
                return other
    return None


def blank_series(run: Mapping[str, Floats], twin: Mapping[str, Floats], rule: Rule) -> list[str]:
    """The series of a run that are not compared because the twin lacks them or is not finite there."""
    return [
        name
        for name in rule.twin_series
        if name in run and not np.isfinite(np.asarray(twin.get(name, [np.nan]))[: rule.twin_steps]).all()
    ]
