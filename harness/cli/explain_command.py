"""`npu-matrix explain CELL`: where the versions of a cell come from, or why a combination is excluded."""

from __future__ import annotations

import json

import click

from harness.cli.completion import complete_cells
from harness.serialisation import as_object, dumps
from harness.settings import Settings


@click.command(
    "explain",
    epilog="\b\nExamples:\n  npu-matrix explain gspo-async\n  npu-matrix explain --json CELL\n"
    "  npu-matrix explain 'gspo-*'\n"
    "  npu-matrix explain --axes verl=0.9.1,vllm_ascend=0.18.0",
)
@click.argument("cell", required=False, shell_complete=complete_cells)
@click.option(
    "--axes",
    multiple=True,
    metavar="AXIS=VALUE",
    help="Explain a combination of versions instead of a cell; a,b or repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, cell: str | None, axes: tuple[str, ...], as_json: bool) -> None:
    """Show the versions, pins, facets and checks of CELL, and the lines of matrix.yaml they come from.

    CELL is a cell id, the beginning of one, or the name of a stack; a glob of several; or a rule of `lint`,
    such as GROUP-1. Below the checks stands what the scaled-down recipe leaves out.
    With --axes: show the rules that exclude a combination of versions, with their sources, and the nearest
    valid cells.
    """
    from harness.cli.explain_output import (
        combination_json,
        combination_lines,
        explain_alone,
        explanation_lines,
    )
    from harness.cli.rule_output import rule_json, rule_lines
    from harness.compat.lint.rule_catalogue import explained_rules
    from harness.plan.feasibility.exclusion import explain_combination, parse_axes
    from harness.workspace.planning.followed_branches import follow_branches
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import find_cells

    if bool(cell) == bool(axes):
        raise click.UsageError("give either CELL or --axes")
    if axes:
        matrix = open_matrix(settings)
        combination = explain_combination(matrix, parse_axes(matrix, axes))
        root = settings.root
        click.echo(
            json.dumps(combination_json(combination, root), indent=2)
            if as_json
            else "\n".join(combination_lines(combination, root))
        )
        return
    rule = explained_rules().get(cell or "")
    if rule is not None:
        click.echo(rule_json([rule]) if as_json else rule_lines(rule))
        return
    matrix, _ = follow_branches(open_matrix(settings))
    cells = find_cells(matrix, settings["profile"], cell or "")
    explained = [explain_alone(settings, one) for one in cells]
    if not as_json:
        click.echo("\n\n".join("\n".join(explanation_lines(one)) for one in explained))
        return
    if len(explained) == 1:
        schema = {"name": "npu-matrix.explain", "version": 1}
        click.echo(dumps({"schema": schema, **as_object(explained[0])}, indent=2))
        return
    schema = {"name": "npu-matrix.explain-cells", "version": 1}
    click.echo(dumps({"schema": schema, "cells": [as_object(one) for one in explained]}, indent=2))
