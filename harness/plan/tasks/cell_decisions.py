"""Decides which checks of a cell run, from the judgements on the others, in a run and after it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.ledger.plan_record import PlanEntry
from harness.outcome import UNRUN, Judgement, Status
from harness.plan.tasks.task import Task

#: After one of these in a tier, the more expensive tiers of the cell are skipped; inconclusive and
#: unsupported do not count as failures.
STOPPING = UNRUN | {Status.FAIL, Status.ERROR}
#: Key -> the judgement on its outcome, None without one.
Judgements = Callable[[str], Judgement | None]


class Phase(enum.Enum):
    """The phase of an entry of the plan. `WAITING`: other entries of its cell decide whether it runs."""

    SKIPPED = "skipped"
    DONE = "done"
    REQUIRED = "required"
    WAITING = "waiting"
    BLOCKED = "blocked"


@dataclass(frozen=True, kw_only=True)
class EntryDecision:
    """The phase of one entry, and the reason if it will not run.

    blocked_by: the key of the task that blocks it; "" if no outcome does.
    """

    entry: PlanEntry
    phase: Phase
    reason: str = ""
    blocked_by: str = ""


def entries_by_cell(entries: Iterable[PlanEntry]) -> dict[str, list[PlanEntry]]:
    """Cell id -> its entries, in the order given."""
    cells: dict[str, list[PlanEntry]] = {}
    for entry in entries:
        cells.setdefault(entry.cell_id, []).append(entry)
    return cells


def decide_cell(
    entries: Sequence[PlanEntry], judgements: Judgements, tasks: Mapping[str, Task], *, keep_going: bool
) -> tuple[EntryDecision, ...]:
    """The decision on each entry of one cell, in the order given."""
    decided: dict[int, EntryDecision] = {}
    for index, entry in sorted(enumerate(entries), key=lambda item: item[1].tier.rank):
        cheaper = [decision for decision in decided.values() if decision.entry.tier.rank < entry.tier.rank]
        decided[index] = _decide(entry, () if keep_going else cheaper, judgements, tasks)
    return tuple(decided[index] for index in range(len(entries)))


def _decide(
    entry: PlanEntry, cheaper: Iterable[EntryDecision], judgements: Judgements, tasks: Mapping[str, Task]
) -> EntryDecision:
    if entry.skip is not None:
        return EntryDecision(entry=entry, phase=Phase.SKIPPED, reason=entry.skip.reason)
    if judgements(entry.key) is not None:
        return EntryDecision(entry=entry, phase=Phase.DONE)
    obstacle = _failed_need(entry, judgements, tasks)
    if obstacle is not None:
        return obstacle
    waiting = False
    for decision in cheaper:
        key = decision.entry.key
        if decision.phase is Phase.BLOCKED:
            return replace(decision, entry=entry)
        judgement = judgements(key) if decision.phase is Phase.DONE else None
        if judgement is not None and judgement.status in STOPPING and tasks[key].check.stops:
            return _blocked(entry, key, decision.entry.check, judgement)
        waiting = waiting or decision.phase in (Phase.REQUIRED, Phase.WAITING)
    return EntryDecision(entry=entry, phase=Phase.WAITING if waiting else Phase.REQUIRED)


def _failed_need(entry: PlanEntry, judgements: Judgements, tasks: Mapping[str, Task]) -> EntryDecision | None:
    """The decision if a direct or indirect need of the task did not pass or is not planned, else None.

    Checks that only inform the task may fail.
    """
    pending, seen = [entry.key], {entry.key}
    while pending:
        task = tasks.get(pending.pop())
        if task is None:
            reason = "the plan does not contain a task that this check needs"
            return EntryDecision(entry=entry, phase=Phase.BLOCKED, reason=reason)
        for need in task.needs:
            judgement = judgements(need)
            if need in tasks and tasks[need].check.name in task.check.informed_by:
                continue
            if judgement is None and need not in seen:
                seen.add(need)
                pending.append(need)
            elif judgement is not None and judgement.status is not Status.PASS:
                return _blocked(entry, need, tasks[need].check.name, judgement)
    return None


def _blocked(entry: PlanEntry, key: str, check: str, judgement: Judgement) -> EntryDecision:
    words = {Status.FAIL: "failed", Status.ERROR: "ended in an error", Status.NOT_RUN: "was not run"}
    word = words.get(judgement.status, f"is {judgement.status.value}")
    reason = f"{check} {word}" + (f": {judgement.reasons[0]}" if judgement.reasons else "")
    return EntryDecision(entry=entry, phase=Phase.BLOCKED, reason=reason, blocked_by=key)
