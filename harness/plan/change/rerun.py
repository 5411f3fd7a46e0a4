"""Why a cell's tasks would run again: its keys of today against those of an earlier plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.ledger.plan_record import CodeRecord, PlanRecord
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One check of a cell: whether a stored outcome answers it; if not, what changed since it was planned."""

    check: str
    reused: bool
    reason: str
    changes: tuple[KeyChange, ...] = ()


def why_rerun(
    plan: Plan,
    cell_id: str,
    earlier: PlanRecord | None,
    known: Collection[str],
    lapsed: Mapping[str, str],
) -> tuple[Rerun, ...]:
    """One answer per check of the cell.

    earlier: a stored plan. known: keys with a reusable outcome. lapsed: keys whose outcome answered nothing
    and could now be another, with the reason.
    """
    before = earlier.tasks_by_name if earlier else {}
    answers: list[Rerun] = []
    for entry in plan.entries:
        if entry.cell_id != cell_id:
            continue
        if entry.skip is not None:
            answers.append(
                Rerun(check=entry.check, reused=False, reason=f"not run here: {entry.skip.reason}")
            )
        elif entry.key in known:
            answers.append(Rerun(check=entry.check, reused=True, reason="its key has an outcome"))
        elif entry.key in lapsed:
            answers.append(Rerun(check=entry.check, reused=False, reason=lapsed[entry.key]))
        elif (cell_id, entry.check) not in before:
            answers.append(Rerun(check=entry.check, reused=False, reason="it was not planned before"))
        else:
            was, now = before[cell_id, entry.check], plan.tasks[entry.key].record()
            changes = key_changes(was, now, earlier.code if earlier else CodeRecord(), plan.code)
            reason = "its key changed" if changes else "the same key, but it did not complete"
            answers.append(Rerun(check=entry.check, reused=False, reason=reason, changes=changes))
    return tuple(answers)
