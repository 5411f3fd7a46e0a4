"""`npu-matrix matrix`: validate matrix.yaml, print its schema, contradictions of tables, version bumps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from harness.cli.follow_command import follow
from harness.cli.migrations_command import migrations, retire
from harness.errors import InputError, Problem, did_you_mean
from harness.serialisation import json_object
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.matrix.version_matrix import Matrix


@click.group(
    "matrix", epilog="\b\nExamples:\n  npu-matrix matrix validate\n  npu-matrix matrix schema > schema.json"
)
def command() -> None:
    """Validate matrix.yaml, print its schema, compare and follow published tables, and show migrations."""


@command.command("validate")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def validate(settings: Settings, as_json: bool) -> None:
    """Check matrix.yaml and expand every profile. All problems are reported, with file:line:column."""
    from harness.matrix.reading.unused_entries import find_unused_entries
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import relative_location

    matrix = open_matrix(settings)
    _resolve_checks(matrix)
    counts = {}
    for profile in matrix.profiles:
        found = matrix.cells(profile)
        counts[profile] = {"cells": len(found.cells), "excluded": len(found.excluded)}
    warnings = [str(warning) for warning in find_unused_entries(matrix)]
    replaced = [
        f"{relative_location(one.where, settings.root)}: {one.name} replaces {one.included}"
        for one in matrix.replaced
    ]
    if as_json:
        report = {
            "schema": {"name": "npu-matrix.matrix-validate", "version": 1},
            "file": settings["matrix"],
            "profiles": counts,
            "warnings": warnings,
            "replaced": replaced,
        }
        click.echo(json.dumps(report, indent=2))
        return
    for warning in warnings:
        click.echo(f"warning: {warning}")
    for sentence in replaced:
        click.echo(sentence)
    for profile, count in counts.items():
        click.echo(
            f"{settings['matrix']}: profile {profile}: {count['cells']} cells, {count['excluded']} excluded"
        )


def _resolve_checks(matrix: Matrix) -> None:
    """InputError when an expectation names a check that does not exist, as it would have no effect."""
    from harness.plan.tasks.check_registry import all_checks

    names = [check.name for check in all_checks()]
    problems = [
        Problem(
            f"expectation {found.id!r} names the unknown check {found.check!r}",
            found.where,
            fix=did_you_mean(found.check, names) or f"known: {', '.join(names)}",
        )
        for found in matrix.expectations.values()
        if found.check not in names
    ]
    if problems:
        raise InputError.of(problems)


@command.command("schema")
def schema() -> None:
    """Print the JSON schema of matrix.yaml for editors."""
    from harness.matrix.document.matrix_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@command.command("drift")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def drift(settings: Settings, as_json: bool) -> None:
    """List contradictions of published compatibility tables.

    Each is listed with both sources.
    """
    from harness.compat.table_drift import find_drift
    from harness.workspace.planning.open_plan import open_matrix

    found = find_drift(open_matrix(settings))
    if as_json:
        report = {
            "schema": {"name": "npu-matrix.drift", "version": 1},
            "contradictions": [json_object(contradiction) for contradiction in found],
        }
        click.echo(json.dumps(report, indent=2))
        return
    for contradiction in found:
        click.echo(str(contradiction))
    click.echo(f"{len(found)} contradictions between {len(open_matrix(settings).published)} published tables")


@command.command(
    "rows",
    epilog="\b\nExamples:\n  npu-matrix matrix rows\n  npu-matrix matrix rows --json | jq '.rows[].stack'",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.rows).")
@click.pass_obj
def rows(settings: Settings, as_json: bool) -> None:
    """Show what is known of each stack.

    The table has its patches, static checks, lock, numerics, twin and recipe, as Markdown. Below it stand
    the checks of each square, the versions in which its cell differs from the stack, the command that runs
    it again, and what the twin leaves out. Nothing is run: stored outcomes of the current keys are read.
    """
    from harness.plan.change.revision import checkout_revision
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.row_table import read_rows, row_lines, rows_document

    with open_ledger(settings) as ledger:
        found = read_rows(settings, ledger)
    if as_json:
        click.echo(json.dumps(rows_document(found, checkout_revision(settings.root)), indent=2))
        return
    click.echo("\n".join(row_lines(found)))


command.add_command(follow)
command.add_command(migrations)
command.add_command(retire)
