"""Finds the change that makes a check fail, also when the check is flaky: a Bayesian bisection.

A good and a bad cell differ on some axes, here called spans. Each span consists of steps, for example the
commits of an upstream, and one step of one span is the culprit. A probe is a cell between the two. It fails
exactly if it contains the culprit, except that a flaky check may fail on a good cell or pass on a bad one.
The search keeps a probability for every step, runs the probe with the most information for its cost, and
stops when one step is probable enough.

The choice is greedy in expected information per cost, and the update is Bayes' rule, as in the probabilistic
bisection of Horstein (1963).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

StepCounts = tuple[int, ...]
#: Prior probability that the good cell fails as well, or that the bad cell failed only by chance.
ENDPOINT_DOUBT = 0.01
#: With more combinations of steps than this, a probe varies only one span; the other spans are at an end.
MAX_GRID = 4096
MAX_CORNERS = 8


@dataclass(frozen=True, kw_only=True)
class FlakeRates:
    """The probabilities that a good cell fails and that a bad cell passes, each below 0.5."""

    false_fail: float = 0.0
    false_pass: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.false_fail < 0.5 and 0 <= self.false_pass < 0.5):
            raise ValueError("an outcome that is wrong half of the time has no information")


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The step (from 1) of a span that makes cells fail.

    span -1: no step does. Then step 1 means that the good cell fails as well, step 0 that the bad cell does
    not fail.
    """

    span: int
    step: int


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The culprit, or several that no probe can distinguish, and its probability."""

    culprits: tuple[Culprit, ...]
    probability: float


@dataclass(frozen=True, kw_only=True)
class SearchForecast:
    """Means over simulated searches: probes, distinct cells, cost, and the share that found the culprit."""

    probes: float
    distinct: float
    cost: float
    right: float
    trials: int


def possible_probes(lengths: Sequence[int]) -> tuple[StepCounts, ...]:
    """The probes over spans with these lengths: every combination, or if too many, one span at a time."""
    if math.prod(length + 1 for length in lengths) <= MAX_GRID:
        return tuple(itertools.product(*(range(length + 1) for length in lengths)))
    found: dict[StepCounts, None] = {}
    for span, length in enumerate(lengths):
        others = [number for number in range(len(lengths)) if number != span]
        for corner in itertools.product(*((0, lengths[other]) for other in others[:MAX_CORNERS])):
            at = dict(zip(others, corner, strict=False))
            for step in range(length + 1):
                vector = tuple(
                    step if number == span else at.get(number, 0) for number in range(len(lengths))
                )
                found[vector] = None
    return tuple(found)


class Bisection:
    """One search. `lengths[i]` is the number of steps of span `i` from good to bad.

    probes: the cells that can be probed, as their number of steps in each span; all by default. prior: for
    each span the weights of its steps, equal by default; all spans together have the same weight. confidence:
    the probability at which to stop. doubt: the prior probability that no step is the culprit.
    ValueError if the two cells do not differ.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        probes: Sequence[StepCounts] | None = None,
        noise: FlakeRates | None = None,
        confidence: float = 0.995,
        prior: Sequence[Sequence[float]] | None = None,
        doubt: float = ENDPOINT_DOUBT,
    ) -> None:
        if not any(lengths):
            raise ValueError("the two cells do not differ")
        self.probes = tuple(probes) if probes is not None else possible_probes(lengths)
        self.noise = noise or FlakeRates()
        self.confidence = confidence
        steps = [
            Culprit(span=span, step=step)
            for span, length in enumerate(lengths)
            for step in range(1, length + 1)
        ]
        at = np.array(self.probes, dtype=np.int64)
        guilty = np.array([(one.span, one.step) for one in steps], dtype=np.int64)
        fails = at[:, guilty[:, 0]] >= guilty[:, 1]
        weights = np.concatenate([_weights(length, prior, span) for span, length in enumerate(lengths)])
        # The last two columns: no step is the culprit, because the bad cell passes or the good cell fails.
        fails = np.hstack([fails, np.zeros((len(at), 1), bool), np.ones((len(at), 1), bool)])
        weights = np.concatenate([weights / weights.sum() * (1 - doubt), [doubt / 2, doubt / 2]])
        self.culprits, failing_groups, self._belief = _group_indistinguishable(
            (*steps, Culprit(span=-1, step=0), Culprit(span=-1, step=1)), fails, weights
        )
        # (probe, culprit) -> 1 if the probe fails with this culprit. float32 is precise enough for gains.
        self._fails: NDArray[np.float32] = failing_groups.astype(np.float32)

    def observe(self, probe: int, *, failed: bool) -> None:
        """Update the probabilities with an outcome; ValueError if outcomes without noise contradict each
        other."""
        bad, good = (
            (1 - self.noise.false_pass, self.noise.false_fail)
            if failed
            else (self.noise.false_pass, 1 - self.noise.false_fail)
        )
        belief = self._belief * np.where(self._fails[probe] > 0, bad, good)
        total = belief.sum()
        if total <= 0:
            raise ValueError("the outcomes contradict each other: the check must be flaky")
        self._belief = belief / total

    def gains(self) -> NDArray[np.float64]:
        """Expected information of each probe, in bits."""
        mass = (self._fails @ self._belief.astype("float32")).clip(0, 1).astype("float64")
        failing = mass * (1 - self.noise.false_pass) + (1 - mass) * self.noise.false_fail
        information: NDArray[np.float64] = (
            _entropy(failing)
            - mass * _entropy_of(self.noise.false_pass)
            - (1 - mass) * _entropy_of(self.noise.false_fail)
        )
        return information

    def best(self, costs: Sequence[float] | NDArray[np.float64] | None = None) -> int | None:
        """The probe with the most information for its cost; None if the search is over or no probe has
        any."""
        if self.finding is not None:
            return None
        gains = self.gains()
        if gains.max() < 1e-9:
            return None
        price = np.maximum(np.asarray(costs, dtype=float), 1e-9) if costs is not None else 1.0
        return int(np.argmax(gains / price))

    @property
    def leading(self) -> SearchResult:
        """The most probable culprit now."""
        index = int(self._belief.argmax())
        return SearchResult(culprits=self.culprits[index], probability=float(self._belief[index]))

    @property
    def finding(self) -> SearchResult | None:
        """The culprit, once it is probable enough."""
        leading = self.leading
        return leading if leading.probability >= self.confidence else None

    @property
    def bits(self) -> float:
        """The entropy of the culprit in bits."""
        belief = self._belief[self._belief > 0]
        return max(0.0, float(-(belief * np.log2(belief)).sum()))

    def forecast(
        self,
        *,
        costs: Callable[[frozenset[int]], Sequence[float]] | None = None,
        trials: int = 64,
        seed: int = 0,
        limit: int = 1000,
    ) -> SearchForecast:
        """Simulate the rest of the search, with culprits and outcomes drawn from the current probabilities.

        costs: earlier probes -> the cost of each probe, by default 1. The state of the search is not changed.
        """
        chance = random.Random(seed)  # noqa: S311 - a simulation
        belief = self._belief
        probes = distinct = right = 0
        cost = 0.0
        try:
            for _ in range(trials):
                self._belief = belief
                truth = chance.choices(range(len(belief)), weights=belief.tolist())[0]
                probed = self._simulate(truth, chance, costs, limit)
                probes += len(probed)
                distinct += len({probe for probe, _ in probed})
                cost += sum(price for _, price in probed)
                right += self.leading.culprits == self.culprits[truth]
        finally:
            self._belief = belief
        return SearchForecast(
            probes=probes / trials,
            distinct=distinct / trials,
            cost=cost / trials,
            right=right / trials,
            trials=trials,
        )

    def _simulate(
        self,
        truth: int,
        chance: random.Random,
        costs: Callable[[frozenset[int]], Sequence[float]] | None,
        limit: int,
    ) -> list[tuple[int, float]]:
        """One search with a known culprit: each probe with its cost, in order."""
        probed: list[tuple[int, float]] = []
        while len(probed) < limit:
            prices = costs(frozenset(probe for probe, _ in probed)) if costs else None
            probe = self.best(prices)
            if probe is None:
                break
            probed.append((probe, prices[probe] if prices else 1.0))
            failing = bool(self._fails[probe, truth])
            wrong = self.noise.false_pass if failing else self.noise.false_fail
            self.observe(probe, failed=failing != (chance.random() < wrong))
        return probed


def minimum_probes(choices: int, noise: FlakeRates) -> float:
    """A lower bound for the mean number of probes: the entropy of `choices` over the capacity of a probe.

    The capacity is that of a binary channel with these error rates (Shannon 1948), maximised on a grid of
    input shares.
    """
    capacity = max(
        _entropy_of(share * (1 - noise.false_pass) + (1 - share) * noise.false_fail)
        - share * _entropy_of(noise.false_pass)
        - (1 - share) * _entropy_of(noise.false_fail)
        for share in (number / 1000 for number in range(1, 1000))
    )
    return math.log2(choices) / capacity


def _weights(length: int, prior: Sequence[Sequence[float]] | None, span: int) -> Any:
    weights = np.array(prior[span], dtype=float) if prior is not None else np.ones(length)
    if len(weights) != length or (length and not weights.sum() > 0):
        raise ValueError(f"span {span} has {length} steps, but {len(weights)} weights")
    return weights / weights.sum() if length else weights


def _group_indistinguishable(steps: Sequence[Culprit], fails: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Merge culprits with which every probe has the same outcome; their weights are added."""
    packed = np.packbits(fails, axis=0)
    number_of_group: dict[bytes, int] = {}
    groups: list[list[int]] = []
    for number in range(fails.shape[1]):
        mark = packed[:, number].tobytes()
        if mark not in number_of_group:
            number_of_group[mark] = len(groups)
            groups.append([])
        groups[number_of_group[mark]].append(number)
    first = [group[0] for group in groups]
    return (
        tuple(tuple(steps[number] for number in group) for group in groups),
        fails[:, first],
        np.array([weights[group].sum() for group in groups]),
    )


def _entropy(shares: Any) -> Any:
    clipped = np.clip(shares, 1e-15, 1 - 1e-15)
    return -(clipped * np.log2(clipped) + (1 - clipped) * np.log2(1 - clipped))


def _entropy_of(share: float) -> float:
    if share <= 0 or share >= 1:
        return 0.0
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share))
