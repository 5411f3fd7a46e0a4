"""Error rates and costs of the decision rule and its rivals on the same curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import betaincinv

from benchmarks.convergence.recorded import Runs
from benchmarks.convergence.rivals import RIVALS, Accepts, Run
from harness.convergence.decision.bands import reference_bands
from harness.convergence.decision.decide import judge
from harness.convergence.decision.decision_rule import Rule
from harness.outcome import Status

# The share of trials in which a fault must fail to count as found.
FOUND = 0.8
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


def measure(kind: str, trials: Iterator[Trial], rule: Rule, rivals: Mapping[str, Accepts] = RIVALS) -> Row:
    """Judge every trial; the rivals judge its first candidate run."""
    row = Row(kind)
    for references, candidates, twins in trials:
        decision = judge(reference_bands(references, rule), candidates, twins=twins)
        row.trials += 1
        row.verdicts[decision.status] = row.verdicts.get(decision.status, 0) + 1
        row.runs += decision.runs_used
        row.saved += 1 - decision.runs_cost / decision.runs_full
        if decision.status is Status.FAIL:
            cause = decision.statistic.name if decision.statistic else decision.decided_by
            row.why[cause] = row.why.get(cause, 0) + 1
        for name, accepts in rivals.items():
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


def print_shares(title: str, columns: Mapping[str, Sequence[Row]]) -> None:
    """One line for each kind, and for each way of judging its share of failures and the steps it saved."""
    print(f"\n### {title}\n")
    print(f"| kind | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for rows in zip(*columns.values(), strict=True):
        cells = (f"{100 * row.share(Status.FAIL):.0f}, {100 * row.saved / row.trials:.0f}" for row in rows)
        print(f"| {rows[0].kind} | {' | '.join(cells)} |")


def sum_up(rows: Sequence[Row]) -> None:
    """Faults found, and what it took; the first row is of healthy stacks."""
    healthy, faulty = rows[0], rows[1:]
    caught = [row for row in faulty if row.share(Status.FAIL) >= FOUND]
    cost = sum(row.runs for row in faulty) / sum(row.trials for row in faulty)
    saved = sum(row.saved for row in caught) / max(1, sum(row.trials for row in caught))
    missed = [row.kind for row in faulty if row not in caught]
    print(f"\nOurs: {len(caught)} of {len(faulty)} found (in {FOUND:.0%} of trials or more).")
    print(f"{cost:.2f} runs for a verdict; {saved:.0%} of the steps of those found saved.")
    print(f"Not found: {', '.join(missed) or 'none'}.")
    for name in RIVALS:
        found = sum(row.refused[name] >= FOUND * row.trials for row in faulty)
        refused = 100 * healthy.refused[name] / healthy.trials
        print(f"{name}: {found} of {len(faulty)} found, false alarms {refused:.1f} %.")


def alarms(healthy: Row) -> None:
    """How often healthy stacks fail, and what a verdict on them costs."""
    failed, trials = healthy.verdicts.get(Status.FAIL, 0), healthy.trials
    undecided = healthy.verdicts.get(Status.INCONCLUSIVE, 0)
    bound = 100 * upper_bound(failed, trials)
    print(f"Healthy: {failed} of {trials} fail (with 95 % confidence at most {bound:.2f} %),")
    print(f"{undecided} inconclusive; {healthy.runs / trials:.2f} runs for a verdict.")


def upper_bound(count: int, trials: int) -> float:
    """Of a share, one-sided 95 % (Clopper and Pearson, Biometrika 26, 1934)."""
    return float(betaincinv(count + 1, trials - count, 0.95)) if trials > count else 1.0
