"""Root causes of the failed tasks of a stored run."""

from __future__ import annotations

from harness.compat.knowledge.pack_at_hand import pack_at_hand
from harness.errors import InfrastructureError
from harness.outcome import Status
from harness.report.model.gather import outcomes_of_run
from harness.settings import Settings
from harness.verdict.triage.catalogue import Catalogue
from harness.verdict.triage.diagnosis import Diagnosis, triage_file
from harness.workspace.open_ledger import open_ledger
from harness.workspace.results.stored_run import open_run


def triage_run(settings: Settings, run_id: str, catalogue: Catalogue) -> dict[str, Diagnosis]:
    """`CELL CHECK` -> diagnosis, for failed tasks. The log of a task that cells share is read once."""
    found: dict[str, Diagnosis] = {}
    surfaces = pack_at_hand(settings.cache)
    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, None if run_id == "latest" else run_id)
        outcomes = outcomes_of_run(ledger, stored.plan.tasks, stored.run.run_id)
        by_key: dict[str, Diagnosis | None] = {}
        for entry, verdict in zip(stored.plan.entries, stored.verdicts, strict=True):
            outcome = outcomes.get(entry.key)
            if verdict.status not in {Status.FAIL, Status.ERROR} or not outcome or not outcome.log:
                continue
            if entry.key not in by_key:
                try:
                    log = ledger.artifacts.get(outcome.log)
                    by_key[entry.key] = triage_file(log, catalogue, surfaces=surfaces)
                except InfrastructureError:
                    by_key[entry.key] = None
            diagnosis = by_key[entry.key]
            if diagnosis is not None:
                found[f"{entry.cell_id} {entry.check}"] = diagnosis
    return found
