"""The cells with a task whose key or expected failure a change modifies."""

from __future__ import annotations

from collections.abc import Sequence

from harness.ledger.plan_record import CellFacts
from harness.plan.change.impact import Effect, compare_plans
from harness.plan.change.revision import resolve_revision
from harness.settings import Settings
from harness.workspace.planning.open_plan import open_plan
from harness.workspace.planning.revision_comparison import expected_otherwise, plan_of_revision


def impacted_cells(
    settings: Settings, reference: str, only: Sequence[str] = (), checks: Sequence[str] = ()
) -> tuple[CellFacts, ...]:
    """The selected cells that differ from a git revision; InputError if it is none."""
    context = open_plan(settings, only=only, checks=checks)
    before = plan_of_revision(context, resolve_revision(settings.root, reference), only, checks)
    names = {(entry.cell_id, entry.check): (entry.cell_id, entry.check) for entry in context.plan.entries}
    found = compare_plans(context.plan, before.plan, expected_otherwise(context, before, names))
    changed = {cell for task in found.tasks if task.effect is not Effect.UNCHANGED for cell in task.cells}
    return tuple(cell for cell in context.plan.cells if cell.id in changed)
