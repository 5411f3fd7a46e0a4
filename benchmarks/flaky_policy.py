"""How often the flake policy is wrong, on 20,000 simulated histories whose truth is known.

A check fails by chance with probability `before` on every base key, and with `after` on the key of the
change. `after` above `before` is a regression; calling it flaky hides it. `after` equal to `before` is a
flake; calling it a failure costs somebody's time. What fails is repeated until it is decided, six times at
most. The rival is what CI systems do: rerun a failed job up to six times and accept the first pass.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.figures import Figure
from harness.verdict.gate.flake import Attempt, Stability, decide

HISTORIES = 20_000
DAY = 86400.0
NOW = 100 * DAY
#: (share of all regressions, probability of failing after it). Stated, not measured: most regressions always
#: fail; those that fail sometimes are the hard ones.
REGRESSIONS = ((0.90, 1.0), (0.07, 0.95), (0.02, 0.8), (0.01, 0.5))
#: (share of checks, probability of failing by chance before the change).
BASES = ((0.95, 0.0), (0.03, 0.02), (0.015, 0.1), (0.005, 0.3))
BASE_KEYS, ATTEMPTS_PER_KEY = 10, 3
MOST_REPEATS = 6


def pick(weighted: tuple[tuple[float, float], ...], chance: random.Random) -> float:
    return chance.choices([value for _, value in weighted], [weight for weight, _ in weighted])[0]


def attempts(rate: float, count: int, start: float, chance: random.Random) -> list[Attempt]:
    return [
        Attempt(passed=chance.random() >= rate, time=start + index, position=int(start) + index)
        for index in range(count)
    ]


def decided(before: float, after: float, chance: random.Random) -> Stability:
    """The class that the policy gives to a key that failed once and was repeated as the policy requests."""
    base = [
        attempts(before, ATTEMPTS_PER_KEY, NOW - (BASE_KEYS - key) * DAY, chance) for key in range(BASE_KEYS)
    ]
    head = [Attempt(passed=False, time=NOW, position=int(NOW))]
    found = decide(head, base, now=NOW)
    for repeat in range(MOST_REPEATS):
        if found.stability not in {Stability.FAILS, Stability.UNPROVEN}:
            break
        later = int(NOW) + repeat + 1
        head.append(Attempt(passed=chance.random() >= after, time=later, position=later))
        found = decide(head, base, now=NOW)
    return found.stability


def reruns_pass(after: float, chance: random.Random) -> bool:
    return any(chance.random() >= after for _ in range(MOST_REPEATS))


def figures() -> Iterator[Figure]:
    chance = random.Random(11)
    cases = [(pick(BASES, chance), pick(REGRESSIONS, chance)) for _ in range(HISTORIES)]
    hidden = sum(decided(before, after, chance) is Stability.FLAKY for before, after in cases)
    accepted = sum(reruns_pass(after, chance) for _before, after in cases)
    yield Figure(
        claim="regressions called flaky",
        measured=100 * hidden / HISTORIES,
        unit="%",
        limit=0.1,
        rival=100 * accepted / HISTORIES,
        rival_name="rerun until it passes",
    )
    each = HISTORIES // 20
    for rate in (0.02, 0.1, 0.3):
        excused = sum(decided(rate, rate, chance) is Stability.FLAKY for _ in range(each))
        yield Figure(
            claim=f"failures of a check that fails by chance in {rate:.0%} of runs, called flaky",
            measured=100 * excused / each,
            unit="%",
            rival=100 * sum(reruns_pass(rate, chance) for _ in range(each)) / each,
            rival_name="rerun until it passes",
        )
