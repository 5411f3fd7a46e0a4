"""Compares a trainer's runs with the reference set of the same settings and version of verl. Host side.

`npu-matrix run --record-reference` records reference sets. Without a set of at least ten runs the shape of
the curve is not judged, and the check says so.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

from harness.convergence.decision import reference_set
from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.reference_set import ReferenceSet
from harness.convergence.telemetry.machine_load import largest_load
from harness.convergence.telemetry.series import Series, decode_series
from harness.convergence.telemetry.training_records import ReferenceProvenance
from harness.convergence.trainer.trainer_measurements import TrainerRun
from harness.errors import InfrastructureError

# With the same seed, a healthy stack trains the same curve except for rounding. The curves of these seeds are
# inside the bands of both reference sets (measured); with another seed a second run may be needed. Without a
# reference only the first seed is trained. Reference runs must use other seeds.
CANDIDATE_SEEDS = (2, 3, 4)
REFERENCE_SEEDS = tuple(range(100, 120))


def reference_for(settings: str, verl: str) -> ReferenceSet | None:
    """The reference set that this version of verl recorded with these settings, or None."""
    fitting = (one for one in reference_set.known_sets() if one.recipe_digest == settings)
    return next((one for one in fitting if one.provenance.versions.get("verl") == verl), None)


def missing_references(reference: ReferenceSet | None) -> str:
    """Why the decision rule cannot be used, or ""."""
    least = Rule().least_references
    if reference is None:
        return f"the curve's shape is not judged: there is no reference set (of at least {least} runs)"
    if len(reference.runs) < least:
        return (
            f"the curve's shape is not judged: the reference set has {len(reference.runs)} runs, {least} are "
            "needed"
        )
    return ""


def read_live_series(live: Path) -> Series:
    """The series that a running trainer has written so far; empty before its first step."""
    try:
        return decode_series(json.loads(live.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def early_stop_reason(reference: ReferenceSet, earlier: Sequence[Series], series: Series) -> str:
    """Why a run with this series so far can be stopped, or ""."""
    decision = decide(reference.runs, [*earlier, series], running=True)
    return "" if decision.decided_by in ("running", "reference", "input") else decision.reasons[0]


def require_complete(run: TrainerRun) -> None:
    """Raise InfrastructureError when a run is not complete."""
    if run.state != "measured" or not run.complete or run.stopped:
        raise InfrastructureError(
            f"the run of seed {run.recipe.seed} is not complete",
            why="; ".join(run.problems) or run.state,
        )


def reference_set_content(runs: Sequence[TrainerRun], *, name: str) -> reference_set.JsonObject:
    """The JSON of a reference set, made from one run of the trainer program for each seed.

    Raises InfrastructureError when a run is not complete.
    """
    for run in runs:
        require_complete(run)
    first = runs[0]
    return reference_set.content(
        name=name,
        recipe_digest=first.settings,
        recipe={key: value for key, value in first.recipe.as_json().items() if key != "seed"},
        provenance=ReferenceProvenance(
            device=first.device,
            versions=first.versions,
            ray=first.ray,
            host=largest_load([run.host for run in runs]),
            date=dt.datetime.now(dt.timezone.utc).date().isoformat(),
            program="python -m harness.convergence.trainer.trainer_program",
        ),
        runs=[(run.recipe.seed, decode_series(run.series)) for run in runs],
    )
