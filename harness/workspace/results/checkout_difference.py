"""Whether a stored run still is about this checkout: checks that have another key here now."""

from __future__ import annotations

from harness.errors import HarnessError
from harness.settings import Settings
from harness.verdict.gate.gate_report import CellCheck
from harness.workspace.planning.open_plan import open_plan
from harness.workspace.results.stored_run import StoredRun


def checks_with_other_keys(settings: Settings, stored: StoredRun) -> tuple[CellCheck, ...]:
    """The checks of the run that this checkout plans with another key, or not at all.

    Checks that this host cannot run are left out, and so is everything if the checkout cannot be planned.
    """
    try:
        plan = open_plan(settings.overridden({"profile": stored.plan.profile})).plan
    except HarnessError:
        return ()
    here = {(entry.cell_id, entry.check): entry for entry in plan.entries}
    found = []
    for entry in stored.plan.entries:
        now = here.get((entry.cell_id, entry.check))
        if entry.key and (now is None or (now.skip is None and now.key != entry.key)):
            found.append((entry.cell_id, entry.check))
    return tuple(found)
