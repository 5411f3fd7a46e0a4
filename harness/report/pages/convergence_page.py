"""The page of convergence: curves in their bands, where the rule looked and what it said, telemetry, cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.model.report_inputs import ResultInput
from harness.report.model.report_model import ReportModel, Result
from harness.report.model.trend import as_float
from harness.report.model.visible_text import clip, duration, number
from harness.report.pages.figures import training_curves
from harness.report.pages.measurement_blocks import Block, floats, is_curve
from harness.report.pages.numerics_page import trend_charts
from harness.report.pages.page_templates import Writer, anchor_of, environment

MAX_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look of the decision rule, in words; `alarm`: it found the run outside its band."""

    step: str
    purpose: str
    statistic: str
    candidate: str
    reference: str
    chance: str
    alarm: bool


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that was measured. `cost`: what it took, in words; `decision`: names and values."""

    title: str
    href: str
    anchor: str
    result: Result
    charts: tuple[Block, ...]
    looks: tuple[Look, ...]
    decision: tuple[tuple[str, str], ...]
    cost: tuple[tuple[str, str], ...]
    trends: tuple[Any, ...]


def convergence_page(model: ReportModel, writer: Writer) -> str:
    """The page as HTML."""
    trainings = list(_trainings(model))
    return (
        environment(writer, up="")
        .get_template("convergence.html")
        .render(
            model=model,
            trainings=trainings[:MAX_SHOWN],
            left=max(0, len(trainings) - MAX_SHOWN),
        )
    )


def _trainings(model: ReportModel) -> Iterator[Training]:
    seen: set[str] = set()
    for row, result in model.measured:
        facts = result.facts
        charts = tuple(training_curves(facts.measurements))
        if not charts or facts.key in seen:
            continue
        seen |= {facts.key} - {""}
        yield Training(
            title=row.cell.title or row.cell.id,
            href=f"cells/{row.slug}.html#{anchor_of(facts.check)}",
            anchor=f"{row.slug}-{anchor_of(facts.check)}",
            result=result,
            charts=charts,
            looks=tuple(_looks(facts.measurements)),
            decision=tuple(_decision(facts.measurements)),
            cost=tuple(_cost(facts)),
            trends=tuple(trend_charts(facts)),
        )


def _looks(measured: Mapping[str, Any]) -> Iterator[Look]:
    decision = _mapping(measured.get("decision"))
    steps = _mapping(measured.get("curves")).get("looks")
    at = list(steps) if isinstance(steps, list | tuple) else []
    fractions = sorted({look.get("fraction") for look in _mappings(decision.get("looks"))} - {None}, key=str)
    for look in _mappings(decision.get("looks")):
        statistic = _mapping(look.get("statistic"))
        place = fractions.index(look.get("fraction")) if look.get("fraction") in fractions else -1
        step = at[place] if len(at) == len(fractions) and place >= 0 else None
        chance, level = as_float(statistic.get("p")), as_float(look.get("level"))
        yield Look(
            step=f"step {step}" if step is not None else _percent(look.get("fraction")),
            purpose=_text(look.get("purpose")),
            statistic=_text(statistic.get("name")),
            candidate=_number(statistic.get("candidate")),
            reference=_number(statistic.get("reference")),
            chance=f"{_number(chance)} (alarm below {_number(level)})" if chance is not None else "",
            alarm=bool(look.get("alarm")),
        )


def _decision(measured: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    decision = _mapping(measured.get("decision"))
    if not decision:
        return
    yield "decided by", _text(decision.get("decided_by"))
    shortfall = as_float(decision.get("shortfall"))
    if shortfall is not None:
        yield "below the reference by at most", f"{_percent(shortfall)} of its rise"
    for twin in _mappings(decision.get("twins"))[:4]:
        yield (
            f"twin run, {_text(twin.get('series'))}",
            f"{_number(twin.get('size'))} (allowed {_number(twin.get('limit'))})",
        )
    for name, words in (("runs_wanted", "more runs wanted"), ("notes", "notes")):
        if decision.get(name):
            yield words, _text(decision[name])


def _cost(facts: ResultInput) -> Iterator[tuple[str, str]]:
    measured = facts.measurements
    decision = _mapping(measured.get("decision"))
    # A trainer's check has its first run's series at the top.
    alone = [measured, *_mappings(measured.get("more"))] if "series" in measured else []
    runs = _mappings(measured.get("runs")) or alone
    steps = max((_length(run) for run in runs), default=0)
    if runs:
        yield "runs", str(decision.get("runs_used", len(runs)))
        yield "seeds", ", ".join(str(_seed(run)) for run in runs[:12])
    if steps:
        yield "steps", str(steps)
    pace = _pace(measured, runs)
    if pace is not None:
        yield "a step", duration(pace)
        if steps:
            yield "training", duration(pace * steps * max(len(runs), 1))
    if facts.seconds:
        yield "the whole check", duration(facts.seconds)
    provenance = _mapping(measured.get("reference_provenance"))
    if provenance:
        device = _mapping(provenance.get("device"))
        where = f"{'simulated ' if device.get('simulated') else ''}{device.get('device', '?')}"
        yield "reference", clip(f"{where}, {provenance.get('date', '?')}", 100)


def _seed(run: Mapping[str, Any]) -> Any:
    return run.get("seed", _mapping(run.get("recipe")).get("seed", "?"))


def _pace(measured: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds a step takes: as measured, or the median of what the runs say."""
    known = as_float(measured.get("seconds_per_step"))
    if known is not None:
        return known
    given = [_mapping(run.get("series")).get("seconds") for run in runs]
    seconds = [value for values in given if values and is_curve(values) for value in floats(values)]
    return statistics.median(seconds) if seconds else None


def _length(run: Mapping[str, Any]) -> int:
    series = _mapping(run.get("series"))
    return max((len(values) for values in series.values() if isinstance(values, Sequence)), default=0)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return "" if value is None else str(value)


def _number(value: Any) -> str:
    known = as_float(value)
    return "—" if known is None else number(known)


def _percent(value: Any) -> str:
    known = as_float(value)
    return f"{known:.0%}" if known is not None and abs(known) < 100 else _number(value)
