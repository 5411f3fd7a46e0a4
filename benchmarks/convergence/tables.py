"""Error rates and costs of the decision rule and its rivals on the same curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.convergence.recorded import Runs
from benchmarks.convergence.rivals import RIVALS, Run
from harness.convergence.bands import reference
from harness.convergence.decision import judge
from harness.convergence.rule import Rule
from harness.outcome import Status

# References, the candidate runs of one stack, and their twins.
Trial = tuple[Sequence[Run], Sequence[Run], Sequence[Run | None]]


@dataclass
class Row:
    """What happened to the trials of one kind: counts of verdicts, sums of costs, refusals by the rivals."""

    kind: str
    trials: int = 0
    verdicts: dict[Status, int] = field(default_factory=dict)
    runs: float = 0.0
    saved: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    why: dict[str, int] = field(default_factory=dict)

    def share(self, status: Status) -> float:
        return self.verdicts.get(status, 0) / max(1, self.trials)


def measure(kind: str, trials: Iterator[Trial], rule: Rule) -> Row:
    """Judge every trial; the rivals judge its first candidate run."""
    row = Row(kind)
    for references, candidates, twins in trials:
        decision = judge(reference(references, rule), candidates, twins=twins)
        row.trials += 1
        row.verdicts[decision.status] = row.verdicts.get(decision.status, 0) + 1
        row.runs += decision.runs_used
        row.saved += 1 - decision.runs_cost / decision.runs_full
        if decision.status is Status.FAIL:
            cause = decision.statistic.name if decision.statistic else decision.decided_by
            row.why[cause] = row.why.get(cause, 0) + 1
        for name, accepts in RIVALS.items():
            row.refused[name] = row.refused.get(name, 0) + (not accepts(references, candidates[0]))
    return row


def drawn(
    make: Callable[[np.random.Generator, str], Run], kind: str, *, runs: int, repetitions: int, seed: int
) -> Iterator[Trial]:
    """Trials from a generator of curves."""
    rng = np.random.default_rng([seed, runs, sum(map(ord, kind))])
    for _ in range(repetitions):
        yield [make(rng, "healthy") for _ in range(runs)], [make(rng, kind) for _ in range(3)], ()


def resampled(
    references: Sequence[Run], healthy: Runs, faulty: Runs | None, *, runs: int, twins: bool, repetitions: int
) -> Iterator[Trial]:
    """Trials from recorded runs; faulty None: candidates are other healthy runs."""
    rng = np.random.default_rng([runs, repetitions])
    pool = [*references, *healthy.values()]
    for _ in range(repetitions):
        order = rng.permutation(len(pool))
        drawn_references = [pool[place] for place in order[:runs]]
        if faulty is None:
            yield drawn_references, [pool[place] for place in order[runs : runs + 3]], ()
            continue
        seeds = [int(seed) for seed in rng.permutation(list(faulty))[:3]]
        mates = [healthy[seed] for seed in seeds] if twins else []
        yield drawn_references, [faulty[seed] for seed in seeds], mates


def print_table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n### {title}\n")
    head = ("kind", "trials", "FAIL %", "INCONCLUSIVE %", "runs", "steps saved %", "decided by", *RIVALS)
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for row in rows:
        cause = max(row.why, key=lambda name: row.why[name], default="")
        rivals = " | ".join(f"{100 * row.refused[name] / row.trials:.0f}" for name in RIVALS)
        print(
            f"| {row.kind} | {row.trials} | {100 * row.share(Status.FAIL):.1f} "
            f"| {100 * row.share(Status.INCONCLUSIVE):.1f} | {row.runs / row.trials:.2f} "
            f"| {100 * row.saved / row.trials:.0f} | {cause} | {rivals} |"
        )
