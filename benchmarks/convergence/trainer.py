"""`python -m benchmarks.convergence.trainer`: the shipped references of verl's trainer against themselves.

Curves: three runs as candidates, others as references, drawn at random. Times of a step: each run, made
slower and faster, against all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.convergence.tables import Trial, alarms, measure
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.performance import compare
from harness.convergence.decision.reference_set import ReferenceSet, shipped_sets

TRIALS = 1000
CANDIDATES = 3
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
# Shares of the machine that others used during the run.
OTHERS = (0.0, 0.3, 0.5, 0.9)

Run = Mapping[str, Sequence[float]]


def main() -> None:
    for reference in shipped_sets():
        if not reference.name.startswith("trainer-"):
            continue
        print(f"\n## {reference.name}: {len(reference.runs)} runs")
        for runs in (10, len(reference.runs) - CANDIDATES):
            print(f"\n{runs} references")
            alarms(measure("healthy", _drawn(reference, runs), Rule(), rivals={}))
        _times(reference.performance)


def _drawn(reference: ReferenceSet, runs: int) -> Iterator[Trial]:
    rng = np.random.default_rng(runs)
    for _ in range(TRIALS):
        order = [reference.runs[place] for place in rng.permutation(len(reference.runs))]
        yield order[:runs], order[runs : runs + CANDIDATES], ()


def _times(runs: Sequence[Run]) -> None:
    print("\nRuns that are called slower\n")
    print(f"| others used | {' | '.join(f'x {factor:g}' for factor in FACTORS)} |")
    print("|---" * (1 + len(FACTORS)) + "|")
    for others in OTHERS:
        counts = (
            sum(_slower(runs, place, factor, others) for place in range(len(runs))) for factor in FACTORS
        )
        print(f"| {others:.0%} | {' | '.join(map(str, counts))} |")


def _slower(runs: Sequence[Run], place: int, factor: float, others: float) -> bool:
    """Whether a run whose steps take `factor` times as long is worse than the other runs."""
    factors = {"seconds": factor, "throughput": 1 / factor}
    slow = {
        name: [value * factors.get(name, 1.0) for value in values] for name, values in runs[place].items()
    }
    found, _ = compare([*runs[:place], *runs[place + 1 :]], slow, others=others)
    return any(one.worse for one in found)


if __name__ == "__main__":
    main()
