"""The curves that a report draws: the bands of the reference runs and the candidate's series. Host side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.convergence.decision.bands import reference_bands
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.telemetry.series import RecordedRun, Series, encode
from harness.convergence.telemetry.training_records import (
    CurveBand,
    RewardCurve,
    StoredNumber,
    TelemetryCurves,
    TrainingCurves,
)

REWARD = "reward"


def training_curves(
    reference_runs: Sequence[Series], candidates: Sequence[tuple[int, RecordedRun]]
) -> TrainingCurves:
    """Mean and 99 % prediction band of each reference series, and the candidates' series (seed, run)."""
    rule = Rule()
    bands = reference_bands(reference_runs, rule)
    lines = {name: [_stored(line) for line in drawn] for name, drawn in bands.drawn.items()}
    shown = {name: CurveBand(mean=mean, low=low, high=high) for name, (mean, low, high) in lines.items()}
    names = sorted({name for _, run in candidates for name in run.series} | set(shown))
    return TrainingCurves(
        reference=shown.get(REWARD, CurveBand()),
        candidate=tuple(
            RewardCurve(seed=seed, reward=_stored(run.series.get(REWARD, ()))) for seed, run in candidates
        ),
        telemetry={
            name: TelemetryCurves(
                mean=band.mean,
                low=band.low,
                high=band.high,
                candidate=tuple(_stored(run.series.get(name, ())) for _, run in candidates),
            )
            for name in names
            if name != REWARD
            for band in [shown.get(name, CurveBand())]
        },
        looks=tuple(rule.steps_at(look, bands.steps) for look in range(len(rule.looks))),
    )


def _stored(values: Iterable[float]) -> tuple[StoredNumber, ...]:
    return tuple(encode(value) for value in values)
