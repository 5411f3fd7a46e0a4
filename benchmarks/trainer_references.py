"""The shipped references of verl's trainer against themselves: false alarms on curves and on step times.

Curves: three of the runs, drawn at random, are candidates and the others references. Times: each run is
compared with all others, as it is, twice as slow, and half as slow again on a machine that others kept half
busy. The rival calls a run slower when its mean step time is above the mean of the others by two of their
standard deviations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.decision_rule import Trial, measure
from benchmarks.figures import Figure
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.performance import compare
from harness.convergence.decision.reference_set import ReferenceSet, shipped_sets

REFERENCES, TRIALS = 10, 300
CANDIDATES = 3
# Shares of the machine that others used during the run.

Run = Mapping[str, Sequence[float]]


def _slower(runs: Sequence[Run], place: int, factor: float, others: float) -> bool:
    """Whether a run whose steps take `factor` times as long is worse than the other runs."""
    factors = {"seconds": factor, "throughput": 1 / factor}
    slow = {
        name: [value * factors.get(name, 1.0) for value in values] for name, values in runs[place].items()
    }
    found, _ = compare([*runs[:place], *runs[place + 1 :]], slow, others=others)
    return any(one.worse for one in found)


def draw(reference: ReferenceSet) -> Iterator[Trial]:
    rng = np.random.default_rng(REFERENCES)
    for _ in range(TRIALS):
        order = [reference.runs[place] for place in rng.permutation(len(reference.runs))]
        yield order[:REFERENCES], order[REFERENCES : REFERENCES + CANDIDATES]


def figures() -> Iterator[Figure]:
    sets = [one for one in shipped_sets() if one.name.startswith("trainer-")]
    for reference in sets:
        row = measure(draw(reference), Rule())
        yield Figure(
            claim=f"{reference.name}: healthy stacks that fail",
            measured=100 * row.failed / row.trials,
            unit="%",
            limit=1,
        )
        runs = reference.performance
        for factor, others, wanted in ((1.0, 0.0, 0), (2.0, 0.0, 100), (1.5, 0.5, 0)):
            slower = sum(_slower(runs, place, factor, others) for place in range(len(runs)))
            theirs = sum(_beyond_two_deviations(runs, place, factor) for place in range(len(runs)))
            yield Figure(
                claim=f"{reference.name}: runs {factor:g} x as slow called slower, others used {others:.0%}",
                measured=100 * slower / len(runs),
                unit="%",
                limit=wanted,
                is_lower_limit=wanted > 0,
                rival=100 * theirs / len(runs),
                rival_name="mean + 2 deviations",
            )


def _beyond_two_deviations(runs: Sequence[Run], place: int, factor: float) -> bool:
    means = [float(np.mean(run["seconds"])) for run in (*runs[:place], *runs[place + 1 :])]
    limit = float(np.mean(means) + 2 * np.std(means, ddof=1))
    return factor * float(np.mean(runs[place]["seconds"])) > limit
