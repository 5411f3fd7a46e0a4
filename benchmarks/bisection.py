"""Bisecting 2,000 commits with flaky outcomes: how often the culprit is right, and how many runs it takes.

Rivals: a binary search that runs each commit as often as a right majority in 99 % of searches needs, and,
with clean outcomes, a plain binary search. Kinds of flakiness at rate 0.2: a good commit fails now and then
(what users call a flaky test), an outcome is an infrastructure error, any outcome is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure
from harness.plan.bisection.search import Bisection, FlakeRates, minimum_probes

COMMITS, TRIALS = 2000, 100
RATE = 0.2
BUILD = 20.0


def ours(
    commits: int, noise: FlakeRates, ask: Callable[[int], bool | None], *, dear_builds: bool = False
) -> tuple[int, list[int]]:
    """The first bad commit that our search finds, and the commits that it runs."""
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
    """Plain binary search; each commit runs `votes` times, and the majority decides."""
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
    """How many votes per commit a binary search needs to be right in 99 % of the trials."""
    wanted = 0.99 ** (1 / math.ceil(math.log2(commits)))
    for votes in range(1, 101, 2):
        right = sum(
            math.comb(votes, bad) * wrong**bad * (1 - wrong) ** (votes - bad) for bad in range(votes // 2 + 1)
        )
        if right >= wanted:
            return votes
    raise ValueError(wrong)


def measure(
    flaky: Callable[[bool, random.Random], bool | None],
    find: Callable[..., tuple[int, list[int]]],
    trials: int,
) -> tuple[float, float, float]:
    """Percentage of trials in which a method finds the culprit, mean runs, mean distinct commits."""
    right, probes, builds = 0, 0, 0
    for trial in range(trials):
        chance = random.Random(trial)
        truth = chance.randint(1, COMMITS)

        def ask(commit: int, truth: int = truth, chance: random.Random = chance) -> bool | None:
            return flaky(commit >= truth, chance)

        found, asked = find(ask)
        right += found == truth
        probes += len(asked)
        builds += len(set(asked))
    return 100 * right / trials, probes / trials, builds / trials


def figures() -> Iterator[Figure]:
    clean = measure(lambda bad, _chance: bad, lambda ask: binary(COMMITS, ask), TRIALS)[1]
    false_fail, both = FlakeRates(false_fail=RATE), FlakeRates(false_fail=RATE, false_pass=RATE)
    kinds: tuple[tuple[str, FlakeRates, Callable[..., bool | None], float, float], ...] = (
        ("20 % of good commits' outcomes fail", false_fail, lambda bad, c: bad or c.random() < RATE, RATE, 2),
        ("20 % have no outcome", FlakeRates(), lambda bad, c: None if c.random() < RATE else bad, 0, 2),
        ("20 % of all outcomes wrong", both, lambda bad, c: bad != (c.random() < RATE), RATE, 0),
    )
    for name, noise, flaky, wrong, limit in kinds:
        votes = votes_needed(COMMITS, wrong)
        right, probes, _ = measure(flaky, lambda ask, n=noise: ours(COMMITS, n, ask), TRIALS)
        theirs = measure(flaky, lambda ask, v=votes: binary(COMMITS, ask, v), TRIALS)
        rival = f"binary search, majority of {votes}"
        yield Figure(
            claim=f"bisection, {name}: culprit right",
            measured=right,
            unit="%",
            limit=99,
            is_lower_limit=True,
            rival=theirs[0],
            rival_name=rival,
        )
        least = minimum_probes(COMMITS, noise) / clean
        yield Figure(
            claim=f"bisection, {name}: runs against one on clean outcomes (Shannon: {least:.2f})",
            measured=probes / clean,
            unit="x",
            limit=limit or None,
            rival=theirs[1] / clean,
            rival_name=rival,
        )
    flaky = kinds[0][2]
    builds = measure(flaky, lambda ask: ours(COMMITS, false_fail, ask, dear_builds=True), 20)[2]
    yield Figure(
        claim="bisection when a build costs 20 runs: commits built against a search on clean outcomes",
        measured=builds / clean,
        unit="x",
        limit=1.1,
        rival=measure(flaky, lambda ask: ours(COMMITS, false_fail, ask), 20)[2] / clean,
        rival_name="the same search without costs",
    )
