"""Compares telemetry at equal states of learning, with linear models of the reference runs.

Runs learn at different speeds, and most telemetry follows from how far a policy has learned. A model predicts
a series from the reward and the series that describe the policy (`Feature.state`) in the same step. What a
model leaves varies less between healthy runs than the series itself, so smaller faults show: advantages
normalised over the batch change how many groups are solved at a given reward, although both series look
healthy alone.
Pure numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision_rule import BOTH_SIDES, Feature, Rule
from harness.convergence.decision.run_summaries import LARGEST, Summary, centre_of, on_scale

Floats = NDArray[np.float64]

# Ridge penalty, as a share of the number of rows, on columns of variance 1: it only matters for columns that
# depend on each other.
RIDGE = 1e-3


@dataclass(frozen=True, kw_only=True)
class StateModel:
    """A least-squares model of one series: weights of the state's columns, which are centred and scaled.

    noise: standard deviation of what the model leaves in one step of a reference run.
    """

    feature: Feature
    state: tuple[Feature, ...]
    reward: str
    centre: Floats
    scale: Floats
    weights: Floats
    noise: float

    def remainder(self, run: Mapping[str, Floats]) -> Floats | None:
        """The series minus its prediction, by step; None if the run lacks a series or has unequal lengths."""
        columns, values = _columns(run, self.reward, self.state), run.get(self.feature.name)
        if columns is None or values is None or len(values) != len(columns):
            return None
        return np.asarray(
            on_scale(values, self.feature) - (columns - self.centre) / self.scale @ self.weights
        )

    def summary(self, run: Mapping[str, Floats]) -> Summary | None:
        """The mean of the remainder of a whole run, or None if there is none."""
        left = self.remainder(run)
        if left is None or not (np.abs(left) < LARGEST).all():
            return None
        return Summary(
            value=centre_of(left, self.feature),
            sides=BOTH_SIDES,
            # If steps are independent, the mean of a healthy run varies at least this much.
            floor=max(self.feature.floor, self.noise / math.sqrt(len(left))),
        )


@dataclass(frozen=True, kw_only=True)
class StateModels:
    """The models of all reference runs, and for each reference run those of the other ones.

    A reference run is compared with models that have not seen it, as a candidate run is.
    """

    all_runs: tuple[StateModel, ...] = ()
    without: tuple[tuple[StateModel, ...], ...] = ()


def state_models(runs: Sequence[Mapping[str, Floats]], rule: Rule) -> StateModels:
    """Models of every series of `rule` that all `runs` have and that is compared at equal state."""
    shared = [one for one in rule.features if all(one.name in run for run in runs)]
    per_series = [
        _fit(runs, feature, tuple(one for one in shared if one.state and one != feature), rule.reward)
        for feature in shared
        if feature.at_equal_state
    ]
    return StateModels(
        all_runs=tuple(models[0] for models in per_series),
        without=tuple(tuple(models[1 + number] for models in per_series) for number in range(len(runs))),
    )


def _fit(
    runs: Sequence[Mapping[str, Floats]], feature: Feature, state: tuple[Feature, ...], reward: str
) -> list[StateModel]:
    """The model of all runs, then the model without each run."""
    raw = [_columns(run, reward, state) for run in runs]
    columns = [found for found in raw if found is not None]
    values = [on_scale(run[feature.name], feature) for run in runs]
    stacked = np.concatenate(columns)
    centre, scale = stacked.mean(axis=0), stacked.std(axis=0)
    # The first column is the constant.
    centre[0], scale = 0.0, np.where(scale > 1e-12, scale, 1.0)
    scaled = [(found - centre) / scale for found in columns]
    squares = [one.T @ one for one in scaled]
    products = [one.T @ target for one, target in zip(scaled, values, strict=True)]
    square, product = sum(squares[1:], squares[0]), sum(products[1:], products[0])

    def solve(square: Floats, product: Floats) -> Floats:
        penalty = RIDGE * square[0, 0] * np.eye(len(square))
        penalty[0, 0] = 0.0
        return np.asarray(np.linalg.solve(square + penalty, product))

    weights = [solve(square, product)]
    weights += [solve(square - one, product - two) for one, two in zip(squares, products, strict=True)]
    left = [target - one @ weight for one, target, weight in zip(scaled, values, weights[1:], strict=True)]
    noise = math.sqrt(float(np.mean([part.var() for part in left])))
    return [
        StateModel(
            feature=feature,
            state=state,
            reward=reward,
            centre=centre,
            scale=scale,
            weights=weight,
            noise=noise,
        )
        for weight in weights
    ]


def _columns(run: Mapping[str, Floats], reward: str, state: tuple[Feature, ...]) -> Floats | None:
    """A constant, and each series of the state with its square; None if one is missing or shorter."""
    curves = [run[reward], *(on_scale(run[one.name], one) for one in state if one.name in run)]
    if len(curves) != 1 + len(state) or len({len(curve) for curve in curves}) > 1:
        return None
    return np.stack([np.ones(len(curves[0])), *curves, *(curve * curve for curve in curves)], axis=1)
