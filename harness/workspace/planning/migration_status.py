"""The progress of migrations: the verdicts of the old and the new stack, and which old stacks can retire."""

from __future__ import annotations

from collections.abc import Iterable

from harness.matrix.model.migration import Migration
from harness.matrix.version_matrix import Matrix
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan
from harness.settings import Settings
from harness.verdict.gate.migration_progress import MigrationProgress, migration_progress
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import Verdict
from harness.workspace.planning.open_plan import expectations, open_plan
from harness.workspace.planning.plan_history import read_history


def migration_advance(settings: Settings, matrix: Matrix, migration: Migration) -> MigrationProgress:
    """The progress of a migration by stored outcomes; none if one of its stacks is not in the matrix."""
    rows = [name for name in (migration.stack, migration.name) if name in matrix.stacks]
    if len(rows) < 2:
        return migration_progress((), ())
    checks, verdicts = _row_verdicts(settings, matrix, rows)
    return migration_progress(verdicts[migration.stack], verdicts[migration.name], checks)


def _row_verdicts(
    settings: Settings, matrix: Matrix, rows: list[str]
) -> tuple[list[str], dict[str, list[Verdict]]]:
    """The checks planned for the stacks, and for each stack the verdicts of checks with an outcome."""
    context = open_plan(settings, choose=lambda _matrix: [matrix.stack_cell(name) for name in rows])
    outcomes = read_history(context).outcomes
    verdicts = judge_plan(context.plan, outcomes, {}, expectations(matrix, settings["profile"]))
    stacks = {cell.id: cell.stack for cell in context.plan.cells}
    # Entries without an outcome have not failed: they have not run yet.
    judged = [
        verdict
        for entry, verdict in zip(context.plan.entries, verdicts, strict=True)
        if not entry.key or entry.key in outcomes
    ]
    return list(dict.fromkeys(entry.check for entry in context.plan.entries)), {
        row: [verdict for verdict in judged if stacks[verdict.cell_id] == row] for row in rows
    }


def finished_migrations(matrix: Matrix, plan: Plan, verdicts: Iterable[Verdict]) -> list[str]:
    """Notices after a run of all checks: the migrations whose old stack can retire."""
    if {entry.check for entry in plan.entries} != {check.name for check in all_checks()}:
        return []
    stacks = {cell.id: cell.stack for cell in plan.cells}
    rows: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        rows.setdefault(stacks[verdict.cell_id], []).append(verdict)
    return [
        f"migration {one.name!r} is done: `npu-matrix matrix retire {one.name}` removes the old stack"
        for one in matrix.migrations.values()
        if {one.stack, one.name} <= rows.keys() and migration_progress(rows[one.stack], rows[one.name]).done
    ]
