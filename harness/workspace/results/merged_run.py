"""Records a run that executes nothing: the profile as it is planned now, with the stored outcomes of all runs
and machines.

Outcomes of other machines come in by `npu-matrix ledger merge`. Their runs are parts of the profile, so the
last one of them says nothing about the rest.
"""

from __future__ import annotations

from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import Status
from harness.plan.change.revision import checkout_revision
from harness.settings import Settings
from harness.verdict.plan_verdicts import judge_plan, summarise_verdicts
from harness.workspace.planning.open_plan import expectations, open_plan

NO_OUTCOME = "no run that is stored here has an outcome of this check with today's inputs"


def record_merged_run(settings: Settings, ledger: Ledger) -> str:
    """Record the run; returns its id. Checks of devices that this host lacks count as planned."""
    context = open_plan(settings, elsewhere=True)
    plan = context.plan
    stored = ledger.get_many(plan.tasks)
    run_id = ledger.begin_run(
        plan.record(), ("report", "--merged"), {"revision": checkout_revision(settings.root)}
    )
    missing = [
        Disposition(
            cell_id=entry.cell_id, check=entry.check, key=entry.key, status=Status.NOT_RUN, reason=NO_OUTCOME
        )
        for entry in plan.entries
        if entry.key in plan.tasks and entry.key not in stored
    ]
    ledger.record_dispositions(run_id, missing)
    verdicts = judge_plan(plan, stored, missing, expectations(context.matrix, plan.profile))
    ledger.finish_run(run_id, summarise_verdicts(verdicts).exit_code)
    return run_id
