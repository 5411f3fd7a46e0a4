"""Decides whether a check that both passed and failed with the same key is flaky.

A key covers all inputs of a check, so different verdicts with the same key are due to chance, and only
attempts with the same key are compared. A flaky check does not block a change, so a real failure must not be
called flaky. Therefore the check must have failed by chance before this change, at least as often as now, and
it must have passed several times in a row with the same key after the failure. The benchmark flaky_policy
measures the error rate on simulated histories.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Passes in a row required after a failure. A check that fails nine times in ten has them with a probability
#: of 0.1 %.
PASSES_REQUIRED = 3
#: The weight of an attempt of the base is halved for each such number of later attempts.
HALF_LIFE = 20
#: One-sided significance level: below it, the key fails more often than its history explains.
SIGNIFICANCE = 0.05
#: A check that has been flaky for longer than this blocks changes.
QUARANTINE_DAYS = 30
SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One execution that passed or failed (infrastructure errors do not count).

    time: Unix seconds, used only to say for how long a check has been flaky. position: the place in the order
    in which the ledger was written, which decides what is newer.
    """

    passed: bool
    time: float
    position: int


class Stability(str, enum.Enum):
    """The conclusion from the attempts with one key. Only `FLAKY` excuses a failure."""

    PASSES = "passes"
    FAILS = "fails"
    FLAKY = "flaky"
    UNPROVEN = "unproven"
    INTRODUCED = "introduced"
    WORSE = "worse"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class FlakeDecision:
    """The decision and the sentence that explains it with its numbers."""

    stability: Stability
    reason: str = ""


def decide(head: Sequence[Attempt], base: Sequence[Sequence[Attempt]], *, now: float) -> FlakeDecision:
    """Decide from the attempts with this key (`head`) and with each earlier key of the entry (`base`).

    The attempts of each key are in the order of their positions. ValueError if `head` is empty.
    """
    if not head:
        raise ValueError("there is no attempt")
    failures = sum(not attempt.passed for attempt in head)
    if failures == 0:
        return FlakeDecision(stability=Stability.PASSES)
    counted = f"failed {failures} of {len(head)} attempts with the same key"
    if failures == len(head):
        return FlakeDecision(stability=Stability.FAILS, reason=counted)
    mixed = [key for key in base if len({attempt.passed for attempt in key}) > 1]
    if not mixed:
        return FlakeDecision(
            stability=Stability.INTRODUCED,
            reason=f"{counted}; before this change no key both passed and failed",
        )
    failed = [attempt for key in mixed for attempt in key if not attempt.passed]
    since = min(failed, key=lambda attempt: attempt.position).time
    # If the clock was set back, the latest time that it showed counts, so that no check is flaky for ever.
    latest = max(now, *(attempt.time for attempts in (head, *base) for attempt in attempts))
    days = (latest - since) / SECONDS_PER_DAY
    if days > QUARANTINE_DAYS:
        return FlakeDecision(
            stability=Stability.EXPIRED,
            reason=f"{counted}; flaky for {days:.0f} days, and the limit is {QUARANTINE_DAYS} days",
        )
    rate, weight = _weighted_rate(base)
    chance = _at_least(failures, len(head), rate * weight, (1 - rate) * weight)
    if chance < SIGNIFICANCE:
        return FlakeDecision(
            stability=Stability.WORSE,
            reason=f"{counted}; before this change {rate:.0%} failed, so the probability is {chance:.1%}",
        )
    passes = next((index for index, attempt in enumerate(reversed(head)) if not attempt.passed), len(head))
    if passes < PASSES_REQUIRED:
        return FlakeDecision(
            stability=Stability.UNPROVEN,
            reason=f"{counted}; {PASSES_REQUIRED - passes} more passes in a row are needed to call it flaky",
        )
    return FlakeDecision(
        stability=Stability.FLAKY,
        reason=f"{counted}, then passed {passes} times in a row; before this change {rate:.0%} failed",
    )


def _weighted_rate(base: Sequence[Sequence[Attempt]]) -> tuple[float, float]:
    """(failure rate, total weight) of all earlier attempts; newer attempts have larger weights."""
    attempts = sorted((attempt for key in base for attempt in key), key=lambda attempt: -attempt.position)
    weights = [0.5 ** (index / HALF_LIFE) for index in range(len(attempts))]
    failed = sum(weight for weight, attempt in zip(weights, attempts, strict=True) if not attempt.passed)
    total = sum(weights)
    return failed / total, total


def _at_least(failures: int, attempts: int, failed: float, passed: float) -> float:
    """P(X >= failures) for a beta-binomial X, with a uniform prior updated by the weighted counts."""

    def log_beta(left: float, right: float) -> float:
        return math.lgamma(left) + math.lgamma(right) - math.lgamma(left + right)

    scale = log_beta(1 + failed, 1 + passed)
    return sum(
        math.comb(attempts, count)
        * math.exp(log_beta(count + 1 + failed, attempts - count + 1 + passed) - scale)
        for count in range(failures, attempts + 1)
    )
