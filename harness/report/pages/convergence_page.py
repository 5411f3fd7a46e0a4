"""The page of convergence: trainings with their reference band, tests of the decision rule, and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.convergence.decision.decision import Decision
from harness.convergence.smoke.smoke_measurements import SmokeMeasurements
from harness.convergence.telemetry.training_records import StoredSeries
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel
from harness.report.model.trend import as_float
from harness.report.model.visible_text import clip, duration, number
from harness.report.pages.figures import training_charts
from harness.report.pages.measurement_blocks import Block, Chart, floats
from harness.report.pages.numerics_page import trend_charts
from harness.report.pages.page_templates import PageWriter, anchor_of, environment

MAX_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class LookRow:
    """One test of the decision rule, in words; `alarm`: the training differs from the reference."""

    step: str
    purpose: str
    statistic: str
    candidate: str
    reference: str
    chance: str
    alarm: bool


@dataclass(frozen=True, kw_only=True)
class TrainingSection:
    """A measured training. decision, cost: names and values, in words."""

    title: str
    href: str
    anchor: str
    result: ReportResult
    charts: tuple[Block, ...]
    looks: tuple[LookRow, ...]
    decision: tuple[tuple[str, str], ...]
    cost: tuple[tuple[str, str], ...]
    trends: tuple[tuple[Chart, int], ...]


def convergence_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    trainings = list(_sections(model))
    return (
        environment(writer, up="")
        .get_template("convergence.html")
        .render(
            model=model,
            trainings=trainings[:MAX_SHOWN],
            more=max(0, len(trainings) - MAX_SHOWN),
        )
    )


def _sections(model: ReportModel) -> Iterator[TrainingSection]:
    seen: set[str] = set()
    for row, result in model.measured(SmokeMeasurements, TrainerMeasurements):
        key, outcome, measured = result.entry.key, result.verdict.outcome, result.typed
        if not isinstance(measured, (SmokeMeasurements, TrainerMeasurements)) or key in seen:
            continue
        charts = tuple(training_charts(measured))
        if not charts:
            continue
        seen |= {key} - {""}
        yield TrainingSection(
            title=row.cell.name,
            href=f"cells/{row.slug}.html#{anchor_of(result.check)}",
            anchor=f"{row.slug}-{anchor_of(result.check)}",
            result=result,
            charts=charts,
            looks=tuple(_looks(measured.decision, measured.curves.looks)) if measured.decision else (),
            decision=tuple(_decision(measured.decision)) if measured.decision else (),
            cost=tuple(_cost(measured, outcome.seconds if outcome else 0.0)),
            trends=tuple(trend_charts(result)),
        )


def _looks(decision: Decision, steps: Sequence[int]) -> Iterator[LookRow]:
    """The tests that the decision rule made. steps: the steps at which it can test."""
    fractions = sorted({look.fraction for look in decision.looks})
    for look in decision.looks:
        statistic = look.statistic
        at = (
            f"step {steps[fractions.index(look.fraction)]}"
            if len(steps) == len(fractions)
            else _percent(look.fraction)
        )
        yield LookRow(
            step=at,
            purpose=look.purpose,
            statistic=statistic.name if statistic else "",
            candidate=number(statistic.candidate) if statistic else "—",
            reference=number(statistic.reference) if statistic else "—",
            chance=f"{number(statistic.p)} (alarm below {number(look.level)})" if statistic else "",
            alarm=look.alarm,
        )


def _decision(decision: Decision) -> Iterator[tuple[str, str]]:
    yield "decided by", decision.decided_by
    if decision.shortfall is not None:
        yield "below the reference by at most", f"{_percent(decision.shortfall)} of its rise"
    for twin in [twin for twin in decision.twins if twin is not None][:4]:
        yield f"twin run, {twin.series}", f"{number(twin.size)} (allowed {number(twin.limit)})"
    if decision.runs_wanted:
        yield "more runs needed", str(decision.runs_wanted)
    if decision.notes:
        yield "notes", "; ".join(decision.notes)


def _cost(
    measured: SmokeMeasurements | TrainerMeasurements, check_seconds: float
) -> Iterator[tuple[str, str]]:
    runs = _runs(measured)
    steps = max((len(values) for _, series in runs for values in series.values()), default=0)
    if runs:
        yield "runs", str(measured.decision.runs_used if measured.decision else len(runs))
        yield "seeds", ", ".join(str(seed) for seed, _ in runs[:12])
    if steps:
        yield "steps", str(steps)
    pace = _seconds_per_step(measured, [series for _, series in runs])
    if pace is not None:
        yield "a step", duration(pace)
        if steps:
            yield "training", duration(pace * steps * len(runs))
    if check_seconds:
        yield "the whole check", duration(check_seconds)
    if measured.reference_provenance:
        device, date = measured.reference_provenance.device, measured.reference_provenance.date
        where = f"{'simulated ' if device.simulated else ''}{device.device or '?'}"
        yield "reference", clip(f"{where}, {date or '?'}", 100)


def _runs(measured: SmokeMeasurements | TrainerMeasurements) -> list[tuple[int, StoredSeries]]:
    """Seed and series of each run."""
    if isinstance(measured, SmokeMeasurements):
        return [(run.seed, run.series) for run in measured.runs]
    first = (measured.recipe.seed, measured.series)
    return [first, *((run.recipe.seed, run.series) for run in measured.more)]


def _seconds_per_step(
    measured: SmokeMeasurements | TrainerMeasurements, series: Sequence[StoredSeries]
) -> float | None:
    """Wall time of a step: as the check measured it, or the median over the steps of all runs."""
    if isinstance(measured, SmokeMeasurements):
        return as_float(measured.seconds_per_step)
    seconds = [value for run in series for value in floats(run.get("seconds", ())) if math.isfinite(value)]
    return statistics.median(seconds) if seconds else None


def _percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) < 100 else number(share)
