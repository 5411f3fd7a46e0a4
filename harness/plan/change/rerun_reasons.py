"""Why tasks run again: a changed key, or a new outcome of a dependency."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.ledger.plan_record import CodeRecord, PlanRecord
from harness.outcome import Outcome
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan, Task


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """One check of a cell: whether its stored outcome is reused, and if not, what changed since it was
    planned."""

    check: str
    reused: bool
    reason: str
    changes: tuple[KeyChange, ...] = ()


def rerun_reasons(
    plan: Plan,
    cell_id: str,
    earlier: PlanRecord | None,
    known: Collection[str],
    outdated: Mapping[str, str],
) -> tuple[Rerun, ...]:
    """One entry per check of the cell.

    earlier: a stored plan. known: keys with a reusable outcome. outdated: key -> why its stored outcome is
    not reused.
    """
    before = earlier.tasks_by_name if earlier else {}
    reasons: list[Rerun] = []
    for entry in plan.entries:
        if entry.cell_id != cell_id:
            continue
        if entry.skip is not None:
            reasons.append(
                Rerun(check=entry.check, reused=False, reason=f"not run here: {entry.skip.reason}")
            )
        elif entry.key in known:
            reasons.append(Rerun(check=entry.check, reused=True, reason="its key has an outcome"))
        elif entry.key in outdated:
            reasons.append(Rerun(check=entry.check, reused=False, reason=outdated[entry.key]))
        elif (cell_id, entry.check) not in before:
            reasons.append(Rerun(check=entry.check, reused=False, reason="it was not planned before"))
        else:
            was, now = before[cell_id, entry.check], plan.tasks[entry.key].record()
            changes = key_changes(was, now, earlier.code if earlier else CodeRecord(), plan.code)
            reason = "its key changed" if changes else "the same key, but it did not complete"
            reasons.append(Rerun(check=entry.check, reused=False, reason=reason, changes=changes))
    return tuple(reasons)


def changed_input_reason(task: Task, outcome: Outcome, outcomes: Mapping[str, Outcome]) -> str:
    """Why a stored outcome of the task was not made from the current `outcomes` (by key), or "".

    Dependencies without an outcome and outcomes that recorded no inputs are ignored.
    """
    for key in task.needs:
        need = outcomes.get(key)
        if need is not None and outcome.inputs.get(need.check, need.content_digest) != need.content_digest:
            return f"{need.check} has a new outcome since then"
    return ""


def outdated_outcomes(tasks: Mapping[str, Task], outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Key -> reason, for outcomes that were made from an earlier outcome of a dependency.

    Outcomes that depend on these are not included: whether they are outdated is known only after the
    dependency has run again.
    """
    found = {
        key: changed_input_reason(tasks[key], outcome, outcomes)
        for key, outcome in outcomes.items()
        if key in tasks
    }
    return {key: reason for key, reason in found.items() if reason}
