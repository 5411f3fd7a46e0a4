"""`python -m benchmarks.convergence [--repetitions N] [--recorded FOLDER]`: the decision rule against its
rivals.

--recorded: a folder made by `benchmarks.convergence.recorded` in a cell; without it only synthetic curves
are judged.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from benchmarks.convergence import recorded, synthetic
from benchmarks.convergence.rivals import RIVALS
from benchmarks.convergence.tables import Row, drawn, measure, print_table, resampled
from harness.convergence.faults import ARITHMETIC
from harness.convergence.recipe import ALGORITHMS
from harness.convergence.reference_set import shipped
from harness.convergence.rule import Rule
from harness.outcome import Status


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.convergence")
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for runs in (10, 20):
        rows = [
            measure(
                kind,
                drawn(
                    synthetic.curve,
                    kind,
                    runs=runs,
                    repetitions=options.repetitions * (8 if kind == "healthy" else 1),
                    seed=options.seed,
                ),
                Rule(),
            )
            for kind in synthetic.KINDS
        ]
        print_table(f"Synthetic reward curves, {runs} reference runs; rivals: refused % of first runs", rows)
        _sum_up(rows)
    started = time.perf_counter()
    early = Rule(accept_early=True)
    healthy = drawn(synthetic.curve, "healthy", runs=20, repetitions=options.repetitions, seed=1)
    print_table("Early acceptance, 20 reference runs", [measure("healthy", healthy, early)])
    spent = (time.perf_counter() - started) / options.repetitions
    print(f"\n{1000 * spent:.0f} ms a decision, bands and rivals included")
    if options.recorded:
        _recorded(options.recorded, options.repetitions)


def _recorded(folder: Path, repetitions: int) -> None:
    for algorithm in ALGORITHMS:
        path = folder / f"{algorithm}.jsonl"
        if not path.is_file():
            print(f"\n{path.name} is not there: {algorithm} is not judged")
            continue
        found = recorded.groups(path)
        references = next(one.runs for one in shipped() if one.name == algorithm)
        healthy = found.pop(recorded.HEALTHY)
        # What equals the clean run is no fault of this algorithm, and what another arithmetic does is no
        # fault.
        first = next(iter(found["nan-loss"]))
        equal = [name for name, runs in found.items() if runs[first] == healthy[first]]
        print(f"\nThe same as a clean {algorithm} run: {', '.join(equal)}")
        for runs, twins in ((10, False), (20, False), (20, True)):
            rows = [
                measure(
                    name,
                    resampled(references, healthy, faulty, runs=runs, twins=twins, repetitions=number),
                    Rule(),
                )
                for name, faulty, number in [
                    (recorded.HEALTHY, None, 5 * repetitions),
                    *(
                        (name, faulty, repetitions // 4)
                        for name, faulty in found.items()
                        if name not in equal
                    ),
                ]
            ]
            with_twins = ", with twins" if twins else ""
            number = len(references) + len(healthy)
            print_table(
                f"Real {algorithm} runs ({number} healthy), {runs} references{with_twins}",
                rows,
            )
            _sum_up([row for row in rows if row.kind not in ARITHMETIC])


def _sum_up(rows: list[Row]) -> None:
    healthy, faulty = rows[0], rows[1:]
    caught = sum(row.share(Status.FAIL) >= 0.8 for row in faulty)
    alarms = healthy.verdicts.get(Status.FAIL, 0)
    cost = sum(row.runs for row in faulty) / sum(row.trials for row in faulty)
    print(f"\nOurs: {caught} of {len(faulty)} faults found (80 % of trials); false alarms {alarms} of")
    print(f"{healthy.trials} (95 % bound {100 * _upper_bound(alarms, healthy.trials):.2f} %), inconclusive")
    undecided = healthy.verdicts.get(Status.INCONCLUSIVE, 0)
    print(f"{undecided}; runs for a verdict: healthy {healthy.runs / healthy.trials:.2f}, faulty {cost:.2f}.")
    for name in RIVALS:
        found = sum(row.refused[name] >= 0.8 * row.trials for row in faulty)
        refused = 100 * healthy.refused[name] / healthy.trials
        print(f"{name}: {found} of {len(faulty)} found, false alarms {refused:.1f} %.")


def _upper_bound(count: int, trials: int) -> float:
    """Clopper-Pearson, one-sided 95 %."""
    from scipy.special import betaincinv

    return float(betaincinv(count + 1, trials - count, 0.95)) if trials > count else math.nan


if __name__ == "__main__":
    main()
