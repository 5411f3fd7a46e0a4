"""A plan: tasks by key, and for every check of every cell its task or the reason why it has none."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.check import Check
from harness.errors import InputError
from harness.ledger.plan_record import (
    CellFacts,
    CodeRecord,
    PlanEntry,
    PlannedExpectation,
    PlanRecord,
    TaskRecord,
)
from harness.settings import DEFAULT_PROFILE


@dataclass(frozen=True, kw_only=True)
class Task:
    """A check with the values of its facets. Tasks with equal keys are the same work.

    needs: keys of the tasks whose outcomes are inputs, also of those whose failure does not block this task.
    """

    key: str
    check: Check
    facets: Mapping[str, Any]
    facet_digests: Mapping[str, str]
    code_digest: str
    needs: tuple[str, ...] = ()
    expected_s: float = 1.0

    def record(self) -> TaskRecord:
        """The task as it is stored: the name of its check, not its code."""
        return TaskRecord(
            key=self.key,
            check=self.check.name,
            tier=self.check.tier,
            facets=self.facets,
            facet_digests=self.facet_digests,
            code_digest=self.code_digest,
            params=self.check.params,
            needs=self.needs,
            expected_s=self.expected_s,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cells, entries and distinct tasks of a profile, or of a part of it; see `PlanRecord`."""

    profile: str
    matrix_digest: str
    cells: tuple[CellFacts, ...]
    entries: tuple[PlanEntry, ...]
    tasks: Mapping[str, Task]
    notices: tuple[str, ...] = ()
    code: CodeRecord = field(default_factory=CodeRecord)
    selection: str = ""
    expected: tuple[PlannedExpectation, ...] | None = None

    def record(self) -> PlanRecord:
        """The plan as it is stored and printed."""
        return PlanRecord(
            profile=self.profile,
            selection=self.selection,
            matrix_digest=self.matrix_digest,
            cells=self.cells,
            entries=self.entries,
            tasks=tuple(task.record() for task in self.tasks.values()),
            notices=self.notices,
            code=self.code,
            expected=self.expected,
        )


def plan_of_record(record: PlanRecord, checks: Mapping[str, Check]) -> Plan:
    """A stored plan with the current checks; tasks of checks that no longer exist are left out.

    InputError if the stored plan is empty or cannot be read.
    """
    if not record.matrix_digest:
        raise InputError(
            "the plan that is stored with this run cannot be read",
            why="it is damaged, or another version of npu-matrix wrote it",
            fix="name another run, or run again: outcomes of unchanged tasks are reused",
        )
    gone = sorted({task.check for task in record.tasks} - set(checks))
    return Plan(
        profile=record.profile,
        matrix_digest=record.matrix_digest,
        cells=record.cells,
        entries=record.entries,
        tasks={
            task.key: Task(
                key=task.key,
                check=checks[task.check],
                facets=task.facets,
                facet_digests=task.facet_digests,
                code_digest=task.code_digest,
                needs=task.needs,
                expected_s=task.expected_s,
            )
            for task in record.tasks
            if task.check in checks
        },
        notices=(*record.notices, *(f"the check {name!r} of this run no longer exists" for name in gone)),
        code=record.code,
        selection=record.selection,
        expected=record.expected,
    )


def reproduce_command(
    cell_id: str, check: str, *, profile: str = DEFAULT_PROFILE, options: Sequence[str] = ()
) -> str:
    """The command that runs one check of a cell again. options: flags for settings that are not the
    defaults."""
    chosen = () if profile == DEFAULT_PROFILE else ("--profile", profile)
    return shlex.join(
        ["npu-matrix", *options, *chosen, "run", "--only", cell_id, "--check", check, "--fresh"]
    )
