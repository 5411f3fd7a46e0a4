"""Chooses the blocks that show the measurements of a result.

Patches, loss cases, lint findings and trainings have blocks of their own. All other measurements, and those
that another version stored, are shown member by member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.compat.lint.lint_measurements import LintFinding, LintMeasured
from harness.convergence.smoke.smoke_measurements import SmokeMeasurements, SmokeRun
from harness.convergence.telemetry.training_records import CurveBand, StoredNumber, StoredSeries
from harness.convergence.trainer.record_trainer import recorded
from harness.convergence.trainer.trainer_measurements import TrainerMeasurements
from harness.measurements import VERSION_FIELD
from harness.numerics.loss.loss_measurements import LossMeasured, LossStatus
from harness.patchstack.apply.patch_verdict import HunkPlace, MeasuredPatch
from harness.patchstack.patch_measurements import PatchesMeasured
from harness.report.model.typed_measurements import measures, typed_measurements
from harness.report.pages.measurement_blocks import (
    Block,
    Chart,
    ChartLine,
    Multiples,
    blocks,
    floats,
    is_curve,
    label,
    table,
)
from harness.serialisation import JsonValue, json_object

#: The measurements that have blocks of their own.
WITH_OWN_BLOCKS = (PatchesMeasured, LossMeasured, LintMeasured, SmokeMeasurements, TrainerMeasurements)


def figures(measurements: Mapping[str, JsonValue], check: str = "") -> tuple[Block, ...]:
    """The blocks for the measurements of `check`; those that decide the verdict come first."""
    if not measurements:
        return ()
    others = {name: value for name, value in measurements.items() if name != VERSION_FIELD}
    typed = typed_measurements(check, measurements) if measures(check, *WITH_OWN_BLOCKS) else None
    found: list[Block] = []
    if isinstance(typed, PatchesMeasured) and typed.verdicts:
        found += _patches(typed.verdicts)
        del others["verdicts"]
    elif isinstance(typed, LossMeasured):
        found += _cases(typed)
        del others["cases"]
    elif isinstance(typed, LintMeasured) and typed.findings:
        found.append(_findings(typed.findings))
        del others["findings"]
    elif isinstance(typed, (SmokeMeasurements, TrainerMeasurements)) and typed.curves.candidate:
        found += training_charts(typed)
        del others["curves"]
        if isinstance(typed, SmokeMeasurements):
            others["runs"] = [_without_series(run) for run in typed.runs]
    return (*found, *blocks(others))


def _without_series(run: SmokeRun) -> dict[str, JsonValue]:
    """A run without its series, which the charts show."""
    fields = json_object(run)
    del fields["series"]
    return fields


def training_charts(training: SmokeMeasurements | TrainerMeasurements) -> list[Block]:
    """The reward of each run over the reference's band, then the other series of the training."""
    curves = training.curves
    known: StoredSeries = {}
    if isinstance(training, TrainerMeasurements) and not curves.reference.mean:
        known = _recorded(training)
    reference = curves.reference if not known else CurveBand(mean=known.get("reward", ()))
    main = _banded("reward", reference, [(f"seed {run.seed}", run.reward) for run in curves.candidate])
    found: list[Block] = [] if main is None else [replace(main, looks=curves.looks, worded=True)]
    charts = [
        _banded(
            label(name),
            band if not known else CurveBand(mean=known.get(name, ())),
            [(str(number), run) for number, run in enumerate(band.candidate, 1)],
        )
        for name, band in curves.telemetry.items()
    ]
    shown = tuple(chart for chart in charts if chart is not None)
    return [*found, *([Multiples(title="telemetry", charts=shown, worded=True)] if shown else [])]


def _recorded(training: TrainerMeasurements) -> StoredSeries:
    """The series of the recorded run that has the same settings, empty when there is none."""
    found = recorded(training.digest, training.versions.get("verl", ""))
    return found.series if found else {}


def _banded(
    title: str, band: CurveBand, candidates: Sequence[tuple[str, Sequence[StoredNumber]]]
) -> Chart | None:
    """Curves over a band; None when there is nothing to draw."""
    series = [
        ChartLine(name=name, values=floats(values), role="candidate")
        for name, values in candidates
        if is_curve(values)
    ]
    if is_curve(band.mean):
        series.append(ChartLine(name="reference", values=floats(band.mean), role="reference"))
    if not series:
        return None
    low, high = (floats(line) if is_curve(line) else () for line in (band.low, band.high))
    return Chart(title=title, series=tuple(series), low=low, high=high)


def _cases(measured: LossMeasured) -> list[Block]:
    """Loss cases with the share of their tolerance: the wrong ones first, then a folded table of all."""
    wrong = [case for case in measured.cases if case.status is LossStatus.FAIL]
    found = (
        ("cases that are wrong", [case for case in wrong if case.is_required]),
        ("cases that are wrong and not required", [case for case in wrong if not case.is_required]),
        ("all cases", measured.cases),
    )
    return [
        replace(table(title, [json_object(case) for case in cases], share="budget"), worded=True)
        for title, cases in found
        if cases
    ]


def _patches(patches: Sequence[MeasuredPatch]) -> list[Block]:
    """Patches with the position of each hunk, and the hunks that do not apply."""
    rows = [
        {
            "patch": patch.patch,
            "verdict": patch.verdict.value,
            "offset": patch.offset,
            "hunks": ", ".join(_place(hunk) for hunk in patch.hunks),
            "why": patch.reasons,
            "do": patch.remedies,
        }
        for patch in patches
    ]
    failures = [
        {"patch": patch.patch, **json_object(failure)} for patch in patches for failure in patch.failures
    ]
    found: list[Block] = [replace(table("patches", rows), folded=False, worded=True)]
    unapplied = replace(table("hunks that do not apply", failures), worded=True)
    return [*found, *([unapplied] if failures else [])]


def _findings(findings: Sequence[LintFinding]) -> Block:
    """The lint findings of a recipe, with file and line."""
    rows = [
        {
            "where": f"{finding.file}:{finding.line}:{finding.column}",
            "severity": finding.severity,
            "rule": finding.rule,
            "message": finding.message,
            "why": finding.why,
            "fix": finding.fix,
            "source": finding.source,
        }
        for finding in findings
    ]
    return replace(table("findings", rows), folded=False, worded=True)


def _place(hunk: HunkPlace) -> str:
    return f"{hunk.path}:{hunk.line}" + (f" ({hunk.offset:+d})" if hunk.offset else "")
