"""Bisecting a range of commits with flaky outcomes: how often it is right, and what it takes.

    PYTHONPATH=. python benchmarks/plan/bisection.py --trials 1000 --out figures.json

Rivals in the same run: a plain binary search that believes every outcome, and one that asks each commit as
often as it takes for the majority to be right. `least` is Shannon's bound on the mean number of probes of
any method; where it lies above twice the clean binary search, no method can stay below that. Figures to
reach with 20 % flaky outcomes: right in at least 99 % of trials, with fewer than twice the probes of a
binary search on clean outcomes.

Kinds of flakiness at rate 0.2: `false fail` (a good commit fails now and then, a bad one always: what users
call a flaky test), `no answer` (an outcome is an infrastructure error that says so), `both` (every outcome
is wrong with that probability). `builds` counts distinct commits: one that was built before is asked again
cheaply, and with `dear builds` a build costs 20 runs and the search knows it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.plan.bisection.search import Bisection, FlakeRates, minimum_probes

RATE = 0.2
BUILD = 20.0


def ours(
    commits: int, noise: FlakeRates, ask: Callable[[int], bool | None], *, dear_builds: bool = False
) -> tuple[int, list[int]]:
    """The first bad commit by our search, and the commits asked."""
    search = TEMPLATES.setdefault((commits, noise), Bisection([commits], noise=noise))
    start = search._belief  # noqa: SLF001 - building the table anew for each trial would measure nothing
    asked: list[int] = []
    try:
        while True:
            costs = None
            if dear_builds:
                built = set(asked)
                costs = [1.0 if number in built else 1.0 + BUILD for number in range(commits + 1)]
            probe = search.best(costs)
            if probe is None:
                (culprit, *_) = search.leading.culprits
                return (culprit.step if culprit.span == 0 else -1), asked
            asked.append(probe)
            failed = ask(probe)
            if failed is not None:
                search.observe(probe, failed=failed)
    finally:
        search._belief = start  # noqa: SLF001


TEMPLATES: dict[tuple[int, FlakeRates], Bisection] = {}


def binary(commits: int, ask: Callable[[int], bool | None], votes: int = 1) -> tuple[int, list[int]]:
    """Plain binary search; each commit is asked `votes` times and the majority believed."""
    low, high, asked = 0, commits, []
    while high - low > 1:
        middle = (low + high) // 2
        failures = 0
        for _ in range(votes):
            answer = None
            while answer is None:
                asked.append(middle)
                answer = ask(middle)
            failures += answer
        low, high = (low, middle) if 2 * failures > votes else (middle, high)
    return high, asked


def votes_needed(commits: int, wrong: float) -> int:
    """Votes at each commit with which a binary search is right 99 % of the time."""
    wanted = 0.99 ** (1 / math.ceil(math.log2(commits)))
    for votes in range(1, 101, 2):
        right = sum(
            math.comb(votes, bad) * wrong**bad * (1 - wrong) ** (votes - bad) for bad in range(votes // 2 + 1)
        )
        if right >= wanted:
            return votes
    raise ValueError(wrong)


def measure(
    commits: int, trials: int, flaky: Callable[[bool, random.Random], bool | None], find: Callable[..., Any]
) -> dict[str, float]:
    """Share of right answers, mean probes and mean distinct commits of a method."""
    right, probes, builds = 0, [], []
    start = time.perf_counter()
    for trial in range(trials):
        chance = random.Random(trial)
        truth = chance.randint(1, commits)

        def ask(commit: int, truth: int = truth, chance: random.Random = chance) -> bool | None:
            return flaky(commit >= truth, chance)

        found, asked = find(ask)
        right += found == truth
        probes.append(len(asked))
        builds.append(len(set(asked)))
    return {
        "right": right / trials,
        "probes": round(statistics.mean(probes), 2),
        "probes_p95": sorted(probes)[int(0.95 * trials)],
        "builds": round(statistics.mean(builds), 2),
        "seconds_per_search": round((time.perf_counter() - start) / trials, 4),
    }


def kinds() -> dict[str, tuple[FlakeRates, Callable[[bool, random.Random], bool | None], float]]:
    """Kind -> what the search assumes, how outcomes come about, and how often one is wrong for a voter."""
    return {
        "clean": (FlakeRates(), lambda bad, _chance: bad, 0.0),
        "false fail": (FlakeRates(false_fail=RATE), lambda bad, chance: bad or chance.random() < RATE, RATE),
        "no answer": (FlakeRates(), lambda bad, chance: None if chance.random() < RATE else bad, 0.0),
        "both": (
            FlakeRates(false_fail=RATE, false_pass=RATE),
            lambda bad, chance: bad != (chance.random() < RATE),
            RATE,
        ),
    }


def compare(commits: int, trials: int) -> dict[str, Any]:
    """Every method on every kind of flakiness."""
    tables: dict[str, Any] = {}
    for name, (noise, flaky, wrong) in kinds().items():
        votes = votes_needed(commits, wrong)
        line = {
            "ours": measure(commits, trials, flaky, lambda ask, n=noise: ours(commits, n, ask)),
            "ours, dear builds": measure(
                commits,
                max(50, trials // 5),
                flaky,
                lambda ask, n=noise: ours(commits, n, ask, dear_builds=True),
            ),
            "binary": measure(commits, trials, flaky, lambda ask: binary(commits, ask)),
            f"binary, majority of {votes}": measure(
                commits, trials, flaky, lambda ask, v=votes: binary(commits, ask, v)
            ),
        }
        bound = minimum_probes(commits, noise) / (1 - RATE if name == "no answer" else 1)
        tables[name] = {"least": round(bound, 2), **line}
    clean = tables["clean"]["binary"]["probes"]
    for line in tables.values():
        for found in line.values():
            if isinstance(found, dict):
                found["times_clean_binary"] = round(found["probes"] / clean, 2)
    return {"commits": commits, "trials": trials, "kinds": tables}


def lines(figures: dict[str, Any]) -> Sequence[str]:
    told = []
    for name, line in figures["kinds"].items():
        told.append(f"{name}: any method needs {line['least']} probes on average")
        told += [
            f"  {method:<24} right {found['right']:.1%}  probes {found['probes']:>6} "
            f"({found['times_clean_binary']} x clean binary)  builds {found['builds']:>6}  "
            f"{found['seconds_per_search']} s"
            for method, found in line.items()
            if isinstance(found, dict)
        ]
    return told


def main() -> int:
    """Run, print and optionally store the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = compare(options.commits, options.trials)
    print("\n".join(lines(figures)))
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
