"""`python -m benchmarks.convergence [--repetitions N] [--healthy N] [--recorded FOLDER]`: the decision rule
against its rivals.

--recorded: a folder made by `benchmarks.convergence.recorded` in a cell; its real curves are judged instead
of synthetic ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.convergence import recorded, synthetic
from benchmarks.convergence.tables import (
    Row,
    Trial,
    alarms,
    drawn,
    measure,
    print_shares,
    print_table,
    resampled,
    sum_up,
)
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.reference_set import for_recipe
from harness.convergence.smoke.training_faults import ARITHMETIC

EARLY = Rule(accept_early=True)
# How many references, and whether candidates have twins.
WAYS = ((10, False), (20, False), (20, True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.convergence")
    parser.add_argument("--repetitions", type=int, default=100, help="trials of each kind of fault")
    parser.add_argument("--healthy", type=int, default=4000, help="trials of healthy stacks")
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.recorded is None:
        _synthetic(options.repetitions, options.healthy, options.seed)
        return
    for name in recorded.RECIPES:
        _recorded(options.recorded, name, options.repetitions, options.healthy)


def _synthetic(repetitions: int, healthy: int, seed: int) -> None:
    def trials(kind: str, runs: int, number: int) -> Iterator[Trial]:
        return drawn(synthetic.curve, kind, runs=runs, repetitions=number, seed=seed)

    for runs in (10, 20):
        rows = [measure(kind, trials(kind, runs, repetitions), Rule()) for kind in synthetic.KINDS]
        print_table(f"Synthetic reward curves, {runs} references; rivals: refused % of first runs", rows)
        sum_up(rows)
        started = time.perf_counter()
        alarms(measure("healthy", trials("healthy", runs, healthy), Rule(), rivals={}))
        print(f"{1000 * (time.perf_counter() - started) / healthy:.1f} ms a decision, its curves included")
    rows = [measure(kind, trials(kind, 20, repetitions), EARLY) for kind in synthetic.KINDS]
    print_table("Early acceptance, 20 references", rows)


def _recorded(folder: Path, name: str, repetitions: int, healthy_trials: int) -> None:
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        print(f"\n{path.name} is not there: {name} is not judged")
        return
    found = recorded.groups(path)
    reference = for_recipe(recorded.RECIPES[name].digest())
    assert reference is not None
    healthy = found.pop(recorded.HEALTHY)
    # What equals the clean run is no fault of this algorithm, and what another arithmetic does is no fault.
    first = next(iter(found["nan-loss"]))
    equal = [fault for fault, runs in found.items() if runs[first] == healthy[first]]
    print(f"\n## {name}: {len(reference.runs)} + {len(healthy)} healthy runs")
    print(f"\nThe same as a clean run: {', '.join(equal) or 'none'}")
    judged: Mapping[str, recorded.Runs] = {fault: runs for fault, runs in found.items() if fault not in equal}

    def row(fault: str, runs: int, twins: bool, number: int, rule: Rule, rivals: bool) -> Row:
        trials = resampled(
            reference.runs, healthy, judged.get(fault), runs=runs, twins=twins, repetitions=number
        )
        return measure(fault, trials, rule) if rivals else measure(fault, trials, rule, rivals={})

    # Four seeds of a fault make four sets of three.
    faulty = [(fault, max(1, repetitions // 4)) for fault in judged]
    columns = {}
    for runs, twins in WAYS:
        title = f"{runs} references{', twins' if twins else ''}"
        rows = [
            row(fault, runs, twins, number, Rule(), rivals=True)
            for fault, number in ((recorded.HEALTHY, 2 * repetitions), *faulty)
        ]
        columns[title] = rows
        print(f"\n### {title}")
        sum_up([one for one in rows if one.kind not in ARITHMETIC])
        alarms(row(recorded.HEALTHY, runs, False, healthy_trials, Rule(), rivals=False))
    columns["20 references, early acceptance"] = [
        row(fault, 20, False, number, EARLY, rivals=False)
        for fault, number in ((recorded.HEALTHY, 2 * repetitions), *faulty)
    ]
    print_shares(f"{name}: FAIL % of trials, steps saved %", columns)


if __name__ == "__main__":
    main()
