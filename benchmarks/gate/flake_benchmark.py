"""How often the flake policy is wrong, on simulated histories whose truth is known.

A history: a check that fails by chance with probability `before` on every base key, with `after` on the key
of the change. `after` above `before` is a regression: calling it flaky hides it. `after` equal to `before`
is a flake: blocking it costs somebody's time. What fails is repeated until it is decided, six times at most.

    python benchmarks/gate/flake_benchmark.py --histories 20000
"""

from __future__ import annotations

import argparse
import json
import random
import sys

from harness.verdict.gate.flake import Attempt, Stability, decide

DAY = 86400.0
NOW = 100 * DAY
#: (share of all regressions, probability of failing after it). Stated, not measured: most regressions always
#: fail; those that fail sometimes are the hard ones.
REGRESSIONS = ((0.90, 1.0), (0.07, 0.95), (0.02, 0.8), (0.01, 0.5))
#: (share of checks, probability of failing by chance before the change).
BASES = ((0.95, 0.0), (0.03, 0.02), (0.015, 0.1), (0.005, 0.3))
BASE_KEYS, ATTEMPTS_PER_KEY = 10, 3
MOST_REPEATS = 6
GOAL = 0.001


def pick(weighted: tuple[tuple[float, float], ...], chance: random.Random) -> float:
    return chance.choices([value for _, value in weighted], [weight for weight, _ in weighted])[0]


def attempts(rate: float, count: int, start: float, chance: random.Random) -> list[Attempt]:
    return [Attempt(passed=chance.random() >= rate, time=start + index) for index in range(count)]


def decided(before: float, after: float, chance: random.Random) -> Stability:
    """What the policy says of the key of a change that failed once and was repeated as it asks."""
    base = [
        attempts(before, ATTEMPTS_PER_KEY, NOW - (BASE_KEYS - key) * DAY, chance) for key in range(BASE_KEYS)
    ]
    head = [Attempt(passed=False, time=NOW)]
    found = decide(head, base, now=NOW)
    for repeat in range(MOST_REPEATS):
        if found.stability not in {Stability.FAILS, Stability.UNPROVEN}:
            break
        head.append(Attempt(passed=chance.random() >= after, time=NOW + repeat + 1))
        found = decide(head, base, now=NOW)
    return found.stability


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=20_000)
    options = parser.parse_args()
    chance = random.Random(11)
    hidden = sum(
        decided(pick(BASES, chance), pick(REGRESSIONS, chance), chance) is Stability.FLAKY
        for _ in range(options.histories)
    )
    each = options.histories // 20
    table = {
        f"fails {after:.0%} after, {before:.0%} before": round(
            sum(decided(before, after, chance) is Stability.FLAKY for _ in range(each)) / each, 4
        )
        for before in (0.0, 0.02, 0.1, 0.3)
        for after in (1.0, 0.95, 0.8, 0.5)
    }
    excused = {
        f"{before:.0%}": round(
            sum(decided(before, before, chance) is Stability.FLAKY for _ in range(each)) / each, 4
        )
        for before in (0.02, 0.1, 0.3)
    }
    rate = hidden / options.histories
    json.dump(
        {
            "schema": {"name": "npu-matrix.benchmark.flake", "version": 1},
            "histories": options.histories,
            "regressions_called_flaky": rate,
            "goal": GOAL,
            "stated_regressions": {f"fails {rate:.0%}": share for share, rate in REGRESSIONS},
            "stated_bases": {f"flaky {rate:.0%}": share for share, rate in BASES},
            "regressions_called_flaky_by_kind": table,
            "chance_failures_called_flaky_by_rate": excused,
        },
        sys.stdout,
        indent=2,
    )
    print()
    return int(rate > GOAL)


if __name__ == "__main__":
    sys.exit(main())
