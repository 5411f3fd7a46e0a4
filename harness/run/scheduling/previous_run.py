"""What the run before this one found, whatever keys its tasks had."""

from __future__ import annotations

from collections.abc import Iterable

from harness.ledger.store import Ledger
from harness.outcome import Status
from harness.plan.tasks.task import Plan
from harness.run.scheduling.schedule import Judge


def failed_in_previous_run(
    plan: Plan, ledger: Ledger, judge: Judge, run_id: str, keys: Iterable[str]
) -> frozenset[str]:
    """Of `keys`, those that answer an entry which failed in the run before this one, under whatever key."""
    wanted = set(keys)
    previous = next((run for run in ledger.runs(limit=2) if run.run_id != run_id), None)
    if previous is None or not wanted:
        return frozenset()
    former = {name: entry.key for name, entry in previous.plan.entries_by_name.items() if entry.key}
    pairs = [
        (entry.key, former[entry.cell_id, entry.check])
        for entry in plan.entries
        if entry.key in wanted and (entry.cell_id, entry.check) in former
    ]
    outcomes = ledger.latest(old for _, old in pairs)
    return frozenset(
        key
        for key, old in pairs
        if old in outcomes and judge(plan.tasks[key].check, outcomes[old]).status is Status.FAIL
    )
