"""The lock of a cell in every format that can be installed from, from the outcome of check `resolve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.builds.export.export_formats import EXPORTS, FILE_NAMES
from harness.builds.lock.cell_lock import LockFacets, make_lock
from harness.errors import HarnessError
from harness.ledger.store import Ledger
from harness.measurements import OldMeasurementsError
from harness.outcome import ArtifactRef, Outcome
from harness.plan.tasks.task import Plan

LOCK = "lock.txt"


def exports_of(
    cell_id: str, plan: Plan, outcomes: Mapping[str, Outcome], ledger: Ledger
) -> Mapping[str, str]:
    """File name -> content; empty when the cell was not resolved, or its lock can no longer be read."""
    facets: dict[str, Any] = {}
    text = ""
    for entry in plan.entries:
        if entry.cell_id != cell_id or entry.key not in plan.tasks:
            continue
        facets |= plan.tasks[entry.key].facets
        outcome = outcomes.get(entry.key)
        ref = outcome.artifact(LOCK) if outcome and entry.check == "resolve" else None
        if ref is not None:
            text = _text(ledger, ref)
    if not text or not {"pins", "platform"} <= facets.keys():
        return {}
    cell = next(cell for cell in plan.cells if cell.id == cell_id)
    try:
        lock = make_lock(
            LockFacets.read(facets),
            text,
            cell=cell.id,
            title=cell.title,
            axes=cell.axes,
            inconsistencies=[f"{finding.what} ({finding.source})" for finding in cell.findings],
        )
        return {FILE_NAMES[name]: export(lock) for name, export in EXPORTS.items()}
    except (HarnessError, OldMeasurementsError):
        # An older version may have stored the plan and the outcome, with other values and facets.
        return {}


def _text(ledger: Ledger, ref: ArtifactRef) -> str:
    try:
        return ledger.artifacts.get(ref).read_text("utf-8")
    except (HarnessError, OSError, UnicodeDecodeError):
        return ""
