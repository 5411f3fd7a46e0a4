"""Measurements of the checks we know, drawn as what they are; all others as `measures` sees them.

Stored outcomes may be older than this code, so a shape that is not the expected one is never an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.measurements import VERSION_FIELD, json_object
from harness.numerics.loss.loss_measurements import LossMeasured, LossStatus
from harness.patchstack.apply.patch_verdict import HunkPlace, MeasuredPatch
from harness.patchstack.patch_measurements import PatchesMeasured
from harness.report.model.typed_measurements import typed_measurements
from harness.report.pages.measurement_blocks import (
    Block,
    Chart,
    Multiples,
    Series,
    blocks,
    floats,
    is_curve,
    label,
    table,
)


def figures(measurements: Mapping[str, Any], check: str = "") -> tuple[Block, ...]:
    """The blocks of what `check` measured: what decides first, the rest after it."""
    if not measurements:
        return ()
    left = {name: value for name, value in measurements.items() if name != VERSION_FIELD}
    typed = typed_measurements(check, measurements)
    found: list[Block] = []
    if isinstance(typed, PatchesMeasured) and typed.verdicts:
        found += _patches(typed.verdicts)
        del left["verdicts"]
    if isinstance(typed, LossMeasured):
        found += _cases(typed)
        del left["cases"]
    for name, draw in DRAWN:
        drawn = draw(left[name]) if name in left else ()
        if drawn:
            found += drawn
            del left[name]
    if found and isinstance(left.get("runs"), Sequence):
        # The series of the runs are drawn already.
        left["runs"] = [_without(run, "series") for run in left["runs"]]
    return (*found, *blocks(left))


def _without(value: Any, name: str) -> Any:
    return {key: item for key, item in value.items() if key != name} if isinstance(value, Mapping) else value


def _records(value: Any, *fields: str) -> list[Mapping[str, Any]]:
    """`value` when it is a list of mappings that all have `fields`, otherwise nothing."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    records = [item for item in value if isinstance(item, Mapping) and all(name in item for name in fields)]
    return records if len(records) == len(value) else []


def training_curves(measurements: Mapping[str, Any]) -> list[Block]:
    """What a training draws: with the bands it was held against, or with the recorded run of its settings."""
    if isinstance(measurements.get("curves"), Mapping):
        return curves(measurements["curves"])
    series = measurements.get("series")
    if not isinstance(series, Mapping) or not is_curve(series.get("reward")):
        return []
    known = _recorded(measurements)
    recipe = measurements.get("recipe")
    seed = recipe.get("seed", 0) if isinstance(recipe, Mapping) else 0
    telemetry = {
        name: {"mean": list(known.get(name, ())), "candidate": [values]}
        for name, values in series.items()
        if name != "reward" and is_curve(values)
    }
    return curves(
        {
            "reference": {"mean": list(known.get("reward", ()))},
            "candidate": [{"seed": seed, "reward": series["reward"]}],
            "telemetry": telemetry,
        }
    )


def _recorded(measurements: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """The recorded run of a trainer with the same settings, empty when there is none."""
    from harness.convergence.trainer.record_trainer import recorded

    versions = measurements.get("versions")
    verl = str(versions.get("verl", "")) if isinstance(versions, Mapping) else ""
    found = recorded(str(measurements.get("digest", "")), verl)
    return found.series if found else {}


def curves(value: Any) -> list[Block]:
    """Learning curves of a candidate's runs over the reference's mean and band, and telemetry beside them."""
    if not isinstance(value, Mapping):
        return []
    runs = _records(value.get("candidate"), "seed", "reward")
    given = value.get("looks")
    looks = tuple(look for look in given if isinstance(look, int)) if isinstance(given, list | tuple) else ()
    found: list[Block] = []
    main = _banded("reward", value.get("reference"), [(f"seed {run['seed']}", run["reward"]) for run in runs])
    if main is not None:
        found.append(replace(main, looks=looks))
    telemetry = value.get("telemetry")
    if isinstance(telemetry, Mapping):
        charts = [
            _banded(
                label(name), entry, [(str(place), run) for place, run in enumerate(entry["candidate"], 1)]
            )
            for name, entry in telemetry.items()
            if isinstance(entry, Mapping) and isinstance(entry.get("candidate"), Sequence)
        ]
        shown = tuple(chart for chart in charts if chart is not None)
        found += [Multiples(title="telemetry", charts=shown)] if shown else []
    return found


def _banded(title: str, band: Any, candidates: Sequence[tuple[str, Any]]) -> Chart | None:
    given = band if isinstance(band, Mapping) else {}
    lines = {name: floats(given[name]) for name in ("mean", "low", "high") if is_curve(given.get(name))}
    series = [
        Series(name=name, values=floats(values), role="candidate")
        for name, values in candidates
        if is_curve(values)
    ]
    if "mean" in lines:
        series.append(Series(name="reference", values=lines["mean"], role="reference"))
    if not series:
        return None
    return Chart(title=title, series=tuple(series), low=lines.get("low", ()), high=lines.get("high", ()))


def _cases(measured: LossMeasured) -> list[Block]:
    """Loss cases with the share of their tolerance: the wrong ones in sight, all of them on request."""
    wrong = [case for case in measured.cases if case.status is LossStatus.FAIL]
    found = (
        ("cases that are wrong", [case for case in wrong if case.is_required]),
        ("cases that are wrong and not required", [case for case in wrong if not case.is_required]),
        ("all cases", measured.cases),
    )
    return [
        table(title, [json_object(case) for case in cases], share="budget") for title, cases in found if cases
    ]


def _patches(patches: Sequence[MeasuredPatch]) -> list[Block]:
    """Patches with the place of each hunk, and the hunks that do not apply."""
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
    found: list[Block] = [replace(table("patches", rows), folded=False)]
    return [*found, *([table("hunks that do not apply", failures)] if failures else [])]


def _findings(value: Any) -> list[Block]:
    """What a recipe's lint found, by place."""
    findings = _records(value, "rule", "file", "line", "message")
    rows = [
        {
            "where": f"{finding['file']}:{finding['line']}:{finding.get('column', 0)}",
            **{
                name: finding.get(name, "")
                for name in ("severity", "rule", "message", "why", "fix", "source")
            },
        }
        for finding in findings
    ]
    return [replace(table("findings", rows), folded=False)] if rows else []


def _place(hunk: HunkPlace) -> str:
    return f"{hunk.path}:{hunk.line}" + (f" ({hunk.offset:+d})" if hunk.offset else "")


DRAWN = (("curves", curves), ("findings", _findings))
