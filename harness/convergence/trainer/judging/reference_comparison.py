"""A trainer's runs against a reference set of the same settings and the same verl, by the decision rule.

Reference sets are made by `npu-matrix run --record-reference`. Without one of at least ten runs nothing can
be decided from the curve's shape, and a check says so. Host side.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.convergence.decision import reference_set
from harness.convergence.decision.decide import decide
from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.reference_set import ReferenceSet
from harness.convergence.telemetry.machine_load import largest_load
from harness.convergence.telemetry.series import Series, decode_series
from harness.convergence.trainer.trainer_measurements import TrainerRun
from harness.errors import InfrastructureError
from harness.measurements import to_json

# A healthy stack trains the same curve from the same seed, but for rounding, so these lie in the bands of
# both reference sets (measured) where another seed may cost a second run. Where there is no reference the
# first alone is trained. Those of reference runs must be others.
CANDIDATE_SEEDS = (2, 3, 4)
REFERENCE_SEEDS = tuple(range(100, 120))


def reference_for(settings: str, verl: str) -> ReferenceSet | None:
    """The reference set of these settings that this version of verl made, or None."""
    fitting = (one for one in reference_set.known_sets() if one.recipe_digest == settings)
    return next((one for one in fitting if one.provenance.versions.get("verl") == verl), None)


def missing_references(reference: ReferenceSet | None) -> str:
    """Why the decision rule cannot be used, or ""."""
    least = Rule().least_references
    if reference is None:
        return f"the curve's shape is not judged: there is no reference set, and {least} runs are needed"
    if len(reference.runs) < least:
        return f"the curve's shape is not judged: the reference has {len(reference.runs)} runs of {least}"
    return ""


def read_live_series(live: Path) -> Series:
    """The series that a running trainer has left, empty while there is nothing."""
    try:
        return decode_series(json.loads(live.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def early_stop_reason(reference: ReferenceSet, earlier: Sequence[Series], series: Series) -> str:
    """Why a run that has come this far need not go on, or ""."""
    decision = decide(reference.runs, [*earlier, series], running=True)
    return "" if decision.decided_by in ("running", "reference", "input") else decision.reasons[0]


def require_complete(run: TrainerRun) -> None:
    """InfrastructureError when a run did not reach its end."""
    if run.state != "measured" or not run.complete or run.stopped:
        raise InfrastructureError(
            f"the run of seed {run.recipe.seed} is not whole",
            why="; ".join(run.problems) or run.state,
        )


def reference_set_content(runs: Sequence[TrainerRun], *, name: str) -> dict[str, Any]:
    """The JSON of a reference set of what `harness.convergence.trainer.trainer_program` wrote for each seed.

    InfrastructureError when a run did not reach its end.
    """
    for run in runs:
        require_complete(run)
    first = runs[0]
    return reference_set.content(
        name=name,
        recipe_digest=first.settings,
        recipe={key: value for key, value in first.recipe.as_json().items() if key != "seed"},
        provenance={
            "device": to_json(first.device),
            "versions": dict(first.versions),
            "ray": first.ray,
            "host": to_json(largest_load([run.host for run in runs])),
            "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
            "program": "python -m harness.convergence.trainer.trainer_program",
        },
        runs=[(run.recipe.seed, decode_series(run.series)) for run in runs],
    )
