"""Numbers that the report follows from run to run, because they change before the verdict does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from harness.convergence.smoke.smoke_measurements import SmokeMeasurements
from harness.convergence.telemetry.training_records import StoredNumber
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements
from harness.numerics.actor.actor_measurements import ActorMeasured
from harness.numerics.loss.loss_measurements import LossMeasured
from harness.numerics.twin.twin_measurements import TwinMeasured
from harness.report.model.report_inputs import ReportResult
from harness.report.model.typed_measurements import typed_measurements
from harness.serialisation import JsonValue

BUDGET = "share of the error budget"
REWARD = "last reward"
SECONDS = "seconds per step"


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One number over runs, oldest first, this run last; nan for a run that did not measure it."""

    name: str
    values: tuple[float, ...]


def figures_of(check: str, measurements: Mapping[str, JsonValue]) -> tuple[tuple[str, float], ...]:
    """Name and value of each number of `check` that is followed over runs; most checks have none."""
    typed = typed_measurements(check, measurements)
    found: dict[str, float | None] = {BUDGET: _budget(typed)}
    if isinstance(typed, (SmokeMeasurements, TrainerMeasurements)):
        found[REWARD] = _last_reward(typed)
    if isinstance(typed, SmokeMeasurements):
        found[SECONDS] = as_float(typed.seconds_per_step)
    return tuple((name, value) for name, value in found.items() if value is not None and math.isfinite(value))


def trends(result: ReportResult) -> tuple[Trend, ...]:
    """The numbers of a result with their values in earlier runs, if at least two runs measured them."""
    now = dict(figures_of(result.check, result.measurements))
    before = [dict(past.figures) for past in result.history]
    lines = [
        Trend(
            name=name,
            values=tuple(figures.get(name, math.nan) for figures in (*before, now)),
        )
        for name in dict.fromkeys([*now, *(name for figures in before for name in figures)])
    ]
    return tuple(line for line in lines if sum(map(math.isfinite, line.values)) > 1)


def _budget(measurements: object) -> float | None:
    """The largest error as a share of its tolerance."""
    if isinstance(measurements, (LossMeasured, TwinMeasured)):
        return measurements.worst_budget
    if isinstance(measurements, ActorMeasured):
        return max((kind.worst_budget for kind in measurements.kinds.values()), default=None)
    return None


def _last_reward(training: SmokeMeasurements | TrainerMeasurements) -> float | None:
    """The reward of the last step, as the mean over the candidate's runs."""
    rewards: Sequence[Sequence[StoredNumber]] = [run.reward for run in training.curves.candidate]
    last = [as_float(values[-1]) for values in rewards if values]
    known = [value for value in last if value is not None]
    return sum(known) / len(known) if known else None


def as_float(value: object) -> float | None:
    """A JSON value as a number, also the words nan, inf and -inf; None for anything else."""
    if is_number(value):
        return float(value)
    return float(value) if isinstance(value, str) and value.lower() in NOT_FINITE else None


NOT_FINITE = frozenset({"nan", "inf", "-inf", "infinity", "-infinity"})


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a JSON value is a number; true and false are no numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)
