"""`npu-matrix matrix migrations` and `matrix retire`: how far version bumps are, and how they end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from harness.settings import Settings
from harness.workspace.followed_branches import followed
from harness.workspace.selection import no_match

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.matrix.model.migration import Migration
    from harness.matrix.version_matrix import Matrix
    from harness.plan.tasks.task import Plan
    from harness.verdict.gate.migration_progress import Advance
    from harness.verdict.verdict import Verdict


@click.command("migrations", epilog="\b\nExamples:\n  npu-matrix matrix migrations --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.migrations).")
@click.pass_obj
def migrations(settings: Settings, as_json: bool) -> None:
    """Show every version bump: both rows check by check, and what the old one still waits for."""
    from harness.workspace.open_plan import open_matrix

    matrix, notices = followed(open_matrix(settings))
    found = {one.name: _advance(settings, matrix, one) for one in matrix.migrations.values()}
    if as_json:
        report = {
            "schema": {"name": "npu-matrix.migrations", "version": 1},
            "migrations": [_json(matrix.migrations[name], steps) for name, steps in found.items()],
            "notices": list(notices),
        }
        click.echo(json.dumps(report, indent=2))
        return
    for name, state in found.items():
        for line in _lines(matrix.migrations[name], state):
            click.echo(line)
    for notice in notices:
        click.echo(f"note: {notice}")
    done = sum(state.done for state in found.values())
    click.echo(f"{len(found)} migrations, {done} done")


@click.command("retire", epilog="\b\nExamples:\n  npu-matrix matrix retire verl-0-9-1 --dry-run")
@click.argument("name", metavar="MIGRATION")
@click.option("--dry-run", is_flag=True, help="Only print the edit.")
@click.option("--force", is_flag=True, help="Retire the old row although the new one is not green.")
@click.pass_obj
def retire(settings: Settings, name: str, dry_run: bool, force: bool) -> int:
    """End a version bump: give the old row the new values and take the migration out of the matrix.

    Refused (exit 1) while the new row is not green. Every other byte of the file stays.
    """
    from harness.matrix.editing.retire_migration import retire_migration as edited
    from harness.matrix.editing.yaml_edit import read_matrix_text, write_matrix_text
    from harness.verdict.expectations import difference
    from harness.workspace.open_plan import open_matrix

    matrix, _ = followed(open_matrix(settings))
    if name not in matrix.migrations:
        raise no_match("migration", name, sorted(matrix.migrations))
    migration = matrix.migrations[name]
    if name not in matrix.stacks:
        raise InputError(f"where {name!r} is cannot be found out now", where=migration.where)
    state = _advance(settings, matrix, migration)
    if not state.done and not force:
        for line in _lines(migration, state):
            click.echo(line)
        return EXIT_UNEXPECTED
    file = settings.path("matrix")
    before, line_end = read_matrix_text(file)
    after = edited(before, migration, matrix.stacks[name].axes, file)
    click.echo(difference(before, after, settings["matrix"]), nl=False)
    if not dry_run:
        write_matrix_text(file, after, line_end)
    return EXIT_OK


def _advance(settings: Settings, matrix: Matrix, migration: Migration) -> Advance:
    """From what the ledger has under the keys of today; a row that cannot be planned has no answers."""
    from harness.verdict.gate.migration_progress import advance

    rows = [name for name in (migration.stack, migration.name) if name in matrix.stacks]
    if len(rows) < 2:
        return advance((), ())
    checks, verdicts = _verdicts(settings, matrix, rows)
    return advance(verdicts[migration.stack], verdicts[migration.name], checks)


def _verdicts(
    settings: Settings, matrix: Matrix, rows: list[str]
) -> tuple[list[str], dict[str, list[Verdict]]]:
    """The checks planned for the rows, and for each row the verdicts on those that have an answer."""
    from harness.verdict.join import judge_plan
    from harness.workspace.open_plan import expectations, open_bench
    from harness.workspace.plan_history import look_up

    bench = open_bench(settings, choose=lambda _matrix: [matrix.stack_cell(name) for name in rows])
    outcomes = look_up(bench).outcomes
    verdicts = judge_plan(bench.plan, outcomes, {}, expectations(matrix, settings["profile"]))
    stacks = {cell.id: cell.stack for cell in bench.plan.cells}
    # Without an outcome it is not that something failed: nobody has asked yet.
    asked = [
        verdict
        for entry, verdict in zip(bench.plan.entries, verdicts, strict=True)
        if not entry.key or entry.key in outcomes
    ]
    return list(dict.fromkeys(entry.check for entry in bench.plan.entries)), {
        row: [verdict for verdict in asked if stacks[verdict.cell_id] == row] for row in rows
    }


def ended(matrix: Matrix, plan: Plan, verdicts: Iterable[Verdict]) -> list[str]:
    """What to tell after a run of all checks: the migrations whose old row can retire."""
    from harness.plan.tasks.check_registry import all_checks
    from harness.verdict.gate.migration_progress import advance

    if {entry.check for entry in plan.entries} != {check.name for check in all_checks()}:
        return []
    stacks = {cell.id: cell.stack for cell in plan.cells}
    rows: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        rows.setdefault(stacks[verdict.cell_id], []).append(verdict)
    return [
        f"migration {one.name!r} is done: `npu-matrix matrix retire {one.name}` takes the old row off"
        for one in matrix.migrations.values()
        if {one.stack, one.name} <= rows.keys() and advance(rows[one.stack], rows[one.name]).done
    ]


def _lines(migration: Migration, state: Advance) -> list[str]:
    moves = ", ".join(
        f"{axis} {value}{'@' + migration.follows[axis] if axis in migration.follows else ''}"
        for axis, value in migration.to.items()
    )
    lines = [
        f"{migration.name}: {migration.title}",
        f"  {migration.stack} -> {moves}  ({migration.owner}, until {migration.until})",
    ]
    width = max((len(step.check) for step in state.steps), default=0)
    for step in state.steps:
        was = step.old.value if step.old else "-"
        now = step.new.value if step.new else "-"
        lines.append(f"  {step.check:<{width}}  {was:<12} -> {now:<12} {step.holds_up}".rstrip())
    lines.append(
        f"  done: npu-matrix matrix retire {migration.name}"
        if state.done
        else f"  waits for {', '.join(step.check for step in state.steps if step.holds_up) or 'a first pass'}"
    )
    return lines


def _json(migration: Migration, state: Advance) -> dict[str, Any]:
    return {
        "name": migration.name,
        "stack": migration.stack,
        "title": migration.title,
        "to": dict(migration.to),
        "follows": dict(migration.follows),
        "reason": migration.reason,
        "source": migration.source,
        "owner": migration.owner,
        "until": str(migration.until or ""),
        "done": state.done,
        "steps": [
            {
                "check": step.check,
                "old": step.old.value if step.old else None,
                "new": step.new.value if step.new else None,
                "holds_up": step.holds_up,
            }
            for step in state.steps
        ],
    }
