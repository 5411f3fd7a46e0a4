"""`npu-matrix matrix migrations` and `matrix retire`: the progress of version migrations, and ending them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_OK, EXIT_UNEXPECTED, InputError
from harness.serialisation import dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.matrix.model.migration import Migration
    from harness.verdict.gate.migration_progress import MigrationProgress


@click.command("migrations", epilog="\b\nExamples:\n  npu-matrix matrix migrations --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.migrations).")
@click.pass_obj
def migrations(settings: Settings, as_json: bool) -> None:
    """Show every migration and the checks that block it.

    For each migration the verdicts of the old and the new stack are shown.
    """
    from harness.workspace.planning.followed_branches import follow_branches
    from harness.workspace.planning.migration_status import migration_advance
    from harness.workspace.planning.open_plan import open_matrix

    matrix, notices = follow_branches(open_matrix(settings))
    found = {one.name: migration_advance(settings, matrix, one) for one in matrix.migrations.values()}
    if as_json:
        report = {
            "schema": {"name": "npu-matrix.migrations", "version": 1},
            "migrations": [_json(matrix.migrations[name], steps) for name, steps in found.items()],
            "notices": list(notices),
        }
        click.echo(dumps(report, indent=2))
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
@click.option("--dry-run", is_flag=True, help="Print the edit and write nothing.")
@click.option("--force", is_flag=True, help="Retire the old stack although the new one does not pass yet.")
@click.pass_obj
def retire(settings: Settings, name: str, dry_run: bool, force: bool) -> int:
    """End a migration whose new stack passes.

    In matrix.yaml the old stack gets the new versions and the migration is removed. Exits with 1 and changes
    nothing while the new stack does not pass. The rest of the file is unchanged.
    """
    from harness.matrix.editing.retire_migration import retire_migration as edited
    from harness.matrix.editing.yaml_edit import read_matrix_text, write_matrix_text
    from harness.verdict.expectations import unified_difference
    from harness.workspace.planning.followed_branches import follow_branches
    from harness.workspace.planning.migration_status import migration_advance
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import unknown_name

    matrix, _ = follow_branches(open_matrix(settings))
    if name not in matrix.migrations:
        raise unknown_name("migration", name, sorted(matrix.migrations))
    migration = matrix.migrations[name]
    if name not in matrix.stacks:
        raise InputError(f"where {name!r} is cannot be found out now", where=migration.where)
    state = migration_advance(settings, matrix, migration)
    if not state.done and not force:
        for line in _lines(migration, state):
            click.echo(line)
        return EXIT_UNEXPECTED
    file = settings.path("matrix")
    before, line_end = read_matrix_text(file)
    after = edited(before, migration, matrix.stacks[name].axes, file)
    click.echo(unified_difference(before, after, settings["matrix"]), nl=False)
    if not dry_run:
        write_matrix_text(file, after, line_end)
    return EXIT_OK


def _lines(migration: Migration, state: MigrationProgress) -> list[str]:
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


def _json(migration: Migration, state: MigrationProgress) -> dict[str, object]:
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
        "steps": state.steps,
    }
