"""What a change touches: the tasks whose key differs between two plans, and for each the reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from harness.ledger.plan_record import PlanRecord
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan


class Effect(str, enum.Enum):
    """What a change does to a task. Unchanged is proved: the key, and so every input, is the same."""

    CHANGED = "changed"
    NEW = "new"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True)
class TaskImpact:
    """One distinct task of today's plan.

    cells: the cells it answers for. changes: against the earlier task of one of them (`compared_with`).
    """

    key: str
    check: str
    effect: Effect
    cells: tuple[str, ...]
    compared_with: str = ""
    changes: tuple[KeyChange, ...] = ()

    @property
    def reason(self) -> str:
        """One line: what changed, or why there is nothing to compare with."""
        if self.effect is Effect.UNCHANGED:
            return "its code, parameters and facets are the same"
        return "; ".join(str(change) for change in self.changes) or "no cell asked for it before"


@dataclass(frozen=True, kw_only=True)
class Impact:
    """Today's tasks in plan order, and the (cell, check) pairs of the earlier plan that are gone."""

    tasks: tuple[TaskImpact, ...]
    gone: tuple[tuple[str, str], ...]

    def of(self, effect: Effect) -> tuple[TaskImpact, ...]:
        """The tasks a change has this effect on."""
        return tuple(task for task in self.tasks if task.effect is effect)


def compare_plans(plan: Plan, before: PlanRecord) -> Impact:
    """Compare today's plan with an earlier one.

    A task is compared with what answered the same check of the same cell; where the cell has another id now
    (its versions were edited), with the cell of the same stack.
    """
    earlier = before.tasks_by_key
    planned = {name: entry.key for name, entry in before.entries_by_name.items() if entry.key}
    stacks = {cell.stack: cell.id for cell in before.cells if cell.stack}
    stack_of = {cell.id: cell.stack for cell in plan.cells}
    wanted: dict[str, list[str]] = {}
    for entry in plan.entries:
        if entry.key:
            wanted.setdefault(entry.key, []).append(entry.cell_id)

    def predecessor(cell_id: str, check: str) -> str:
        same = planned.get((cell_id, check))
        return same or planned.get((stacks.get(stack_of[cell_id], ""), check), "")

    tasks = []
    for key, task in plan.tasks.items():
        cells = tuple(wanted.get(key, ()))
        if key in earlier:
            tasks.append(TaskImpact(key=key, check=task.check.name, effect=Effect.UNCHANGED, cells=cells))
            continue
        old = next((found for found in (predecessor(cell, task.check.name) for cell in cells) if found), "")
        tasks.append(
            TaskImpact(
                key=key,
                check=task.check.name,
                effect=Effect.CHANGED if old else Effect.NEW,
                cells=cells,
                compared_with=old,
                changes=key_changes(earlier[old], task.record(), before.code, plan.code) if old else (),
            )
        )
    present = {(entry.cell_id, entry.check) for entry in plan.entries}
    return Impact(tasks=tuple(tasks), gone=tuple(sorted(set(planned) - present)))
