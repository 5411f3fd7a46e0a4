"""The impact of a change: the tasks whose key differs between two plans, each with the reason."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from harness.ledger.plan_record import PlanRecord
from harness.plan.keys.key import KeyChange, key_changes
from harness.plan.tasks.task import Plan


class Effect(str, enum.Enum):
    """What a change does to a task. UNCHANGED is certain: with equal keys, all inputs are equal.

    EXPECTED: the key is equal, but the change modifies whether the task is expected to fail.
    """

    CHANGED = "changed"
    NEW = "new"
    EXPECTED = "expected"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True)
class TaskImpact:
    """One distinct task of the current plan.

    cells: the cells that share the task. changes: the differences from the earlier task of one of these
    cells, whose key is `compared_with`.
    """

    key: str
    check: str
    effect: Effect
    cells: tuple[str, ...]
    compared_with: str = ""
    changes: tuple[KeyChange, ...] = ()

    @property
    def reason(self) -> str:
        """One line: the changes, or why there is no earlier task to compare with."""
        if self.effect is Effect.UNCHANGED:
            return "its code, parameters and facets are the same"
        if self.effect is Effect.EXPECTED:
            return "only its expected failure in matrix.yaml is another one"
        return "; ".join(str(change) for change in self.changes) or "no cell had this task before"


@dataclass(frozen=True, kw_only=True)
class Impact:
    """The current tasks in plan order, and the (cell, check) pairs that only the earlier plan has."""

    tasks: tuple[TaskImpact, ...]
    gone: tuple[tuple[str, str], ...]

    def of(self, effect: Effect) -> tuple[TaskImpact, ...]:
        """The tasks on which the change has this effect."""
        return tuple(task for task in self.tasks if task.effect is effect)


def compare_plans(
    plan: Plan, before: PlanRecord, expected_otherwise: Collection[tuple[str, str]] = ()
) -> Impact:
    """Compare the current plan with an earlier one.

    expected_otherwise: the (cell, check) whose expected failure differs.

    A task is compared with the earlier task of the same check and cell. If no earlier cell has this id,
    because its versions were edited, the earlier cell of the same stack is used.
    """
    earlier = before.tasks_by_key
    planned = {name: entry.key for name, entry in before.entries_by_name.items() if entry.key}
    stacks = {cell.stack: cell.id for cell in before.cells if cell.stack}
    stack_of = {cell.id: cell.stack for cell in plan.cells}
    cells_of_key: dict[str, list[str]] = {}
    for entry in plan.entries:
        if entry.key:
            cells_of_key.setdefault(entry.key, []).append(entry.cell_id)

    def predecessor(cell_id: str, check: str) -> str:
        same = planned.get((cell_id, check))
        return same or planned.get((stacks.get(stack_of[cell_id], ""), check), "")

    tasks = []
    for key, task in plan.tasks.items():
        cells = tuple(cells_of_key.get(key, ()))
        if key in earlier:
            otherwise = any((cell, task.check.name) in expected_otherwise for cell in cells)
            effect = Effect.EXPECTED if otherwise else Effect.UNCHANGED
            tasks.append(TaskImpact(key=key, check=task.check.name, effect=effect, cells=cells))
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
