"""Rejection by rollout correction: the options of each release, and which response tokens each of them
keeps. Also options of importance weights.

With the log-ratio d = old_log_prob - rollout_log_prob of a token, older releases keep a token if d, its sum
or its mean over the response is between two logarithms. Newer ones use estimators of the KL divergence
(verl's `compute_rollout_rejection_mask`): k1 = -d between two logarithms, k2 = d^2 / 2 and k3 = e^d - d - 1
up to a bound. A veto rejects a response with a token whose d is too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import FP32, Array
from harness.numerics.loss.verl_losses_source import REJECTION_ESTIMATORS, REJECTION_LEVELS, REJECTION_VETO
from harness.numerics.update.update_cases import WEIGHT_LIMIT, UpdateInputs

Statistic = Callable[[Array], Array]

STATISTICS: Mapping[str, Statistic] = {
    "d": lambda d: d,
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: np.exp(d) - d - 1,
}


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """One option. statistic: a key of `STATISTICS`. over: "token", or how the statistics of a response are
    combined: "sum", "mean", "max", "min". lower, upper: the closed interval of what is kept. settings: the
    option in the configuration of verl. too: another option that is set with it."""

    name: str
    capability: str
    statistic: str
    over: str
    lower: float
    upper: float
    settings: Mapping[str, str | float]
    too: Rejection | None = None

    def kept(self, inputs: UpdateInputs) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The response mask after rejection, and where rounding cannot decide it; both (rows, response)."""
        mask = inputs.response_mask != 0
        statistics = STATISTICS[self.statistic](inputs.old_log_probs - inputs.rollout_log_probs)
        found = statistics if self.over == "token" else self._combined(statistics, mask)[:, None]
        margin = 64 * FP32.unit * (1 + np.abs(statistics).sum(axis=1, keepdims=True))
        sure = (np.abs(found - self.lower) > margin) & (np.abs(found - self.upper) > margin)
        inside = (found >= self.lower) & (found <= self.upper)
        kept, sure = (mask & inside).astype(np.int64), np.broadcast_to(sure, mask.shape)
        if self.too is None:
            return kept, sure
        others, others_sure = self.too.kept(inputs)
        return kept * others, sure & others_sure

    def _combined(self, statistics: Array, mask: NDArray[np.bool_]) -> Array:
        if self.over in {"max", "min"}:
            neutral = -math.inf if self.over == "max" else math.inf
            chosen = np.where(mask, statistics, neutral)
            extreme = chosen.max(axis=1) if self.over == "max" else chosen.min(axis=1)
            return np.where(mask.any(axis=1), extreme, 0.0)
        total = (statistics * mask).sum(axis=1)
        return np.asarray(total if self.over == "sum" else total / np.maximum(mask.sum(axis=1), 1))


def _level(name: str, over: str, lower: float, upper: float) -> Rejection:
    bounds = {"rollout_rs_threshold": upper, "rollout_rs_threshold_lower": lower}
    return Rejection(
        name=name,
        capability=REJECTION_LEVELS,
        statistic="d",
        over=over,
        lower=math.log(lower),
        upper=math.log(upper),
        settings={"rollout_rs": name, **bounds},
    )


def _estimator(over: str, estimator: str, upper: float, lower: float = 0.0) -> Rejection:
    name = f"{'token' if over == 'token' else f'seq_{over}'}_{estimator}"
    threshold = f"{lower}_{upper}" if lower else str(upper)
    return Rejection(
        name=name,
        capability=REJECTION_ESTIMATORS,
        statistic=estimator,
        over=over,
        lower=math.log(lower) if lower else -math.inf,
        upper=math.log(upper) if lower else upper,
        settings={"rollout_rs": name, "rollout_rs_threshold": threshold},
    )


def _both(first: Rejection, second: Rejection, threshold: str) -> Rejection:
    """Two options; threshold: one for both, or one for each."""
    name = f"{first.name},{second.name}"
    settings = {"rollout_rs": name, "rollout_rs_threshold": threshold}
    return replace(first, name=f"{name} {threshold}", too=second, settings=settings)


def _reciprocal(option: Rejection, upper: float) -> Rejection:
    """The same option with one bound for ratios. The other one is its reciprocal."""
    settings: Mapping[str, str | float] = {"rollout_rs": option.name, "rollout_rs_threshold": upper}
    name, bound = f"{option.name}, one bound", math.log(upper)
    return replace(option, name=name, settings=settings, lower=-bound, upper=bound)


VETO = 0.4

REJECTIONS = (
    _level("token", "token", 0.6, 1.5),
    _level("sequence", "sum", 0.3, 2.0),
    _level("geometric", "mean", 0.8, 1.15),
    Rejection(
        name="veto",
        capability=REJECTION_VETO,
        statistic="d",
        over="min",
        lower=math.log(VETO),
        upper=math.inf,
        settings={"rollout_token_veto_threshold": VETO},
    ),
    _estimator("token", "k1", 1.5, 0.6),
    _estimator("token", "k2", 0.15),
    _estimator("token", "k3", 0.12),
    _estimator("sum", "k1", 2.4, 0.55),
    _estimator("sum", "k2", 1.46),
    _estimator("sum", "k3", 1.1),
    _estimator("mean", "k1", 1.15, 0.8),
    _estimator("mean", "k2", 0.15),
    _estimator("mean", "k3", 0.17),
    _estimator("max", "k2", 0.58),
    _estimator("max", "k3", 0.28),
    _both(_estimator("token", "k2", 0.14), _estimator("mean", "k3", 0.14), "0.14"),
    _both(_estimator("mean", "k2", 0.15), _estimator("max", "k3", 0.28), "0.15,0.28"),
    _reciprocal(_level("token", "token", 0.6, 1.5), 1.4),
    _reciprocal(_estimator("token", "k1", 1.5, 0.6), 1.4),
)
"""Bounds between the values of the case that uses them, so that each option keeps and rejects tokens, and
other ones than another estimator with the same bounds."""

LONE_ROW = slice(5, 6)
"""A row that is also a batch of its own. Each option rejects tokens of it."""

STORED_REJECTION = _estimator("token", "k1", 1.5, 0.6)
"""The rejection whose mask a trainer with a transfer queue must store for the update."""


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """One option of importance weights, truncated. level: "token", or "sequence" for the product of the
    ratios of a response. normalised: divided by their mean."""

    level: str
    normalised: bool = False

    @property
    def name(self) -> str:
        """Names the quantity."""
        return f"weights {self.level}{', normalised' if self.normalised else ''}"

    @property
    def capability(self) -> str:
        """What a release must have."""
        return "weights:normalised" if self.normalised else "weights"

    @property
    def settings(self) -> Mapping[str, object]:
        """The option in the configuration of verl."""
        more = {"rollout_is_batch_normalize": True} if self.normalised else {}
        return {"rollout_is": self.level, "rollout_is_threshold": WEIGHT_LIMIT, **more}


WEIGHTINGS = (
    Weighting(level="sequence"),
    Weighting(level="token", normalised=True),
    Weighting(level="sequence", normalised=True),
)
"""Besides truncated weights of tokens, which an update has."""
