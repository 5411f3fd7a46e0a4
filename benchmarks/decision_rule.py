"""The decision rule on synthetic reward curves: false alarms, faults found, steps saved, against other rules.

Rivals judge the same first runs (`curve_rules`): the eye's rule, verl's own check, Mann-Kendall, MLPerf's
reference convergence points, a band of three standard deviations. A fault counts as found when 80 % of its
trials fail. Curves have 60 steps; each candidate is compared with 20 references.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.curve_rules import RIVALS, Run
from benchmarks.figures import Figure
from benchmarks.synthetic_curves import KINDS, curve
from harness.convergence.decision.bands import reference_bands
from harness.convergence.decision.decide import judge
from harness.convergence.decision.decision_rule import Rule
from harness.outcome import Status

# The share of trials in which a fault must fail to count as found.
FOUND = 0.8
# References, and the candidate runs of one stack.
Trial = tuple[Sequence[Run], Sequence[Run]]
REFERENCES, TRIALS, HEALTHY_TRIALS = 20, 50, 1000
EARLY_SAVED = "early acceptance: steps saved on healthy stacks"


def measure(trials: Iterator[Trial], rule: Rule) -> Row:
    """Judge every trial; the rivals judge its first candidate run."""
    row = Row(refused=dict.fromkeys(RIVALS, 0))
    for references, candidates in trials:
        decision = judge(reference_bands(references, rule), candidates)
        row.trials += 1
        row.failed += decision.status is Status.FAIL
        row.runs += decision.runs_used
        row.saved += 1 - decision.runs_cost / decision.runs_full
        for name, accepts in RIVALS.items():
            row.refused[name] += not accepts(references, candidates[0])
    return row


def upper_bound(count: int, trials: int) -> float:
    """The one-sided 95 % upper bound of a share (Clopper and Pearson, Biometrika 26, 1934)."""
    low, high = count / trials, 1.0
    for _ in range(60):
        share = (low + high) / 2
        fewer = sum(
            math.comb(trials, number) * share**number * (1 - share) ** (trials - number)
            for number in range(count + 1)
        )
        low, high = (share, high) if fewer > 0.05 else (low, share)
    return high


@dataclass
class Row:
    """The trials of one kind: number of each verdict, steps saved, rejections by the rivals."""

    trials: int = 0
    failed: int = 0
    runs: float = 0.0
    saved: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)


def draw(kind: str, repetitions: int) -> Iterator[Trial]:
    """Trials of synthetic curves."""
    rng = np.random.default_rng([0, REFERENCES, sum(map(ord, kind))])
    for _ in range(repetitions):
        yield [curve(rng, "healthy") for _ in range(REFERENCES)], [curve(rng, kind) for _ in range(3)]


def figures() -> Iterator[Figure]:
    healthy = measure(draw("healthy", HEALTHY_TRIALS), Rule(core=()))
    rows = {kind: measure(draw(kind, TRIALS), Rule(core=())) for kind in KINDS if kind != "healthy"}
    found = {kind for kind, row in rows.items() if row.failed >= FOUND * row.trials}
    yield Figure(
        claim="healthy stacks that fail (upper bound at 95 % confidence: "
        f"{100 * upper_bound(healthy.failed, healthy.trials):.2f} %)",
        measured=100 * healthy.failed / healthy.trials,
        unit="%",
        limit=0.5,
    )
    yield Figure(
        claim="runs for a verdict on a healthy stack", measured=healthy.runs / healthy.trials, limit=1.2
    )
    for name in RIVALS:
        caught = sum(row.refused[name] >= FOUND * row.trials for row in rows.values())
        alarms = 100 * healthy.refused[name] / healthy.trials
        yield Figure(
            claim=f"kinds of faults found, of {len(rows)}",
            measured=len(found),
            limit=10,
            is_lower_limit=True,
            rival=caught,
            rival_name=f"{name} ({alarms:.1f} % false alarms)",
        )
    for kind, row in rows.items():
        yield Figure(
            claim=f'fault "{kind}": trials that fail', measured=round(100 * row.failed / row.trials), unit="%"
        )
    caught_rows = [rows[kind] for kind in found]
    saved = sum(row.saved for row in caught_rows) / sum(row.trials for row in caught_rows)
    yield Figure(
        claim="steps saved on the faults found", measured=100 * saved, unit="%", limit=40, is_lower_limit=True
    )
    early = Rule(core=(), accept_early=True)
    accepted = measure(draw("healthy", TRIALS), early)
    yield Figure(claim=EARLY_SAVED, measured=round(100 * accepted.saved / accepted.trials), unit="%")
    for kind in ("late collapse", "NaN"):
        row = measure(draw(kind, TRIALS), early)
        yield Figure(
            claim=f'early acceptance: fault "{kind}" found',
            measured=round(100 * row.failed / row.trials),
            unit="%",
            rival=round(100 * rows[kind].failed / rows[kind].trials),
            rival_name="read to the end",
        )
