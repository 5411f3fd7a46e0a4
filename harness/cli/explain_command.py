"""`npu-matrix explain CELL`: where the versions of a cell come from, or why a combination is excluded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from harness.matrix.model.cell import Cell
from harness.plan.feasibility.exclusion import RuleViolation, explain_combination, parse_axes
from harness.plan.keys.facets import FACETS, facet_values, origins
from harness.settings import Settings
from harness.workspace.planning.followed_branches import follow_branches
from harness.workspace.planning.open_plan import PlanContext, facet_inputs, open_matrix, open_plan
from harness.workspace.planning.plan_estimates import cost_text, estimate_basis, estimate_plan
from harness.workspace.planning.plan_history import read_history
from harness.workspace.planning.plan_selection import find_cell, relative_location

#: A facet's value is cut there; --json has all of it.
LONGEST = 90


@click.command(
    "explain",
    epilog="\b\nExamples:\n  npu-matrix explain gspo-async\n  npu-matrix explain --json CELL\n"
    "  npu-matrix explain --axes verl=0.9.1,vllm_ascend=0.18.0",
)
@click.argument("cell", required=False)
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

    CELL is a cell id, the beginning of one, or the name of a stack. With --axes: show the rules that exclude
    a combination of versions, with their sources, and the nearest valid cells.
    """
    if bool(cell) == bool(axes):
        raise click.UsageError("give either CELL or --axes")
    if axes:
        combination = _combination(settings, axes)
        lines = [json.dumps(combination, indent=2)] if as_json else _combination_lines(combination)
        click.echo("\n".join(lines))
        return
    matrix, _ = follow_branches(open_matrix(settings))
    found = find_cell(matrix, settings["profile"], cell or "")
    context = open_plan(settings, choose=lambda _matrix: [found])
    report = _report(context, found)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for line in _lines(report):
        click.echo(line)


def _combination(settings: Settings, axes: tuple[str, ...]) -> dict[str, Any]:
    matrix = open_matrix(settings)
    found = explain_combination(matrix, parse_axes(matrix, axes))

    def objection_json(objection: RuleViolation) -> dict[str, str]:
        return {
            "rule": objection.rule,
            "what": objection.what,
            "reason": objection.reason,
            "source": objection.source,
            "where": relative_location(objection.where, settings.root),
        }

    return {
        "schema": {"name": "npu-matrix.explain-axes", "version": 1},
        "axes": dict(found.axes),
        "valid": bool(found.cells),
        "violated": [objection_json(objection) for objection in found.violated],
        "contradiction": [objection_json(objection) for objection in found.contradiction],
        "cells": [cell.id for cell in found.cells],
        "nearest": [
            {
                "cell": near.cell.id,
                "title": near.cell.title,
                "changes": {axis: list(pair) for axis, pair in near.changes.items()},
            }
            for near in found.nearest
        ],
    }


def _combination_lines(report: dict[str, Any]) -> list[str]:
    asked = " ".join(f"{axis}={value}" for axis, value in report["axes"].items())
    if report["cells"]:
        shown = [f"  {cell}" for cell in report["cells"][:5]]
        more = len(report["cells"]) - len(shown)
        verdict = [
            f"{asked}: in {len(report['cells'])} cells",
            *shown,
            *([f"  and {more} more"] if more else []),
        ]
    elif report["violated"]:
        verdict = [f"{asked}: excluded by {len(report['violated'])} rules"]
    elif report["contradiction"]:
        verdict = [f"{asked}: excluded, because these rules together leave no value for the other axes"]
    else:
        verdict = [f"{asked}: no rule excludes it, but no profile selects such a cell"]
    for objection in (*report["violated"], *report["contradiction"]):
        verdict.append(f"  {objection['where']}: {objection['rule']}")
        verdict += [f"      {objection['what']}"] if objection["what"] else []
        verdict += [f"      because {objection['reason']}", f"      proof: {objection['source']}"]
    if report["nearest"]:
        verdict += ["nearest valid cells:"]
    for near in report["nearest"]:
        changes = ", ".join(f"{axis} {old} -> {new}" for axis, (old, new) in near["changes"].items())
        verdict.append(f"  {near['cell']}: {changes}")
    return verdict


def _report(context: PlanContext, cell: Cell) -> dict[str, Any]:
    inputs = facet_inputs(context.settings, context.matrix)
    costs = estimate_plan(context.plan, read_history(context))
    root = context.settings.root
    return {
        "schema": {"name": "npu-matrix.explain", "version": 1},
        "cell": cell.id,
        "title": cell.title,
        "stack": cell.stack,
        "profiles": [name for name in context.matrix.profiles if context.matrix.cells(name).get(cell.id)],
        "axes": {
            axis: {"value": value, "from": relative_location(cell.provenance[axis], root)}
            for axis, value in cell.axes.items()
        },
        "pins": [
            {"requirement": pin.requirement, "reason": pin.reason, "source": pin.source} for pin in cell.pins
        ],
        "findings": [{"what": finding.what, "source": finding.source} for finding in cell.findings],
        "facets": facet_values(cell, tuple(FACETS), inputs),
        "facets_from": {
            name: [relative_location(where, root) for where in origins(name, cell, inputs)] for name in FACETS
        },
        "checks": [
            {
                "check": entry.check,
                "question": entry.question,
                "key": entry.key,
                "not_run": entry.skip.reason if entry.skip else "",
                "known": bool(entry.key) and entry.key not in costs["tasks"],
            }
            for entry in context.plan.entries
        ],
        "estimates": costs,
    }


def _lines(report: dict[str, Any]) -> list[str]:
    profiles = ", ".join(report["profiles"])
    lines = [
        f"{report['cell']}: {report['title']}",
        f"in profiles: {profiles}" if profiles else "not planned: no profile selects it",
        "",
        "versions:",
    ]
    width = max(len(axis) for axis in report["axes"])
    lines += [
        f"  {axis:<{width}}  {value['value']:<28} {value['from']}" for axis, value in report["axes"].items()
    ]
    lines += ["", "pins:"] + [
        f"  {pin['requirement']}\n      because {pin['reason']} ({pin['source']})" for pin in report["pins"]
    ]
    if report["findings"]:
        lines += ["", "known inconsistencies in the source of this stack:"]
        lines += [f"  {finding['what']} ({finding['source']})" for finding in report["findings"]]
    lines += ["", "facets (what checks read), and where they come from:"]
    for name, value in report["facets"].items():
        text = _told(value)
        lines.append(f"  {name:<20} {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}")
        lines.append(f"  {'':<20} from {_places(report['facets_from'][name])}")
    lines += ["", "checks:"]
    for check in report["checks"]:
        answer = f"not run: {check['not_run']}" if check["not_run"] else _cost(check, report["estimates"])
        lines.append(f"  {check['check']:<12} {check['question']}\n  {'':<12} {answer}")
    return [*lines, *estimate_basis(report["estimates"])]


def _cost(check: dict[str, Any], costs: dict[str, Any]) -> str:
    """The key, and what answering it takes."""
    if check["known"]:
        return f"key {check['key'][:12]}, has a stored outcome"
    task = costs["tasks"][check["key"]]
    one = {**task, "tasks": 1, "disk_unknown": int(task["disk_mib"] is None)}
    return f"key {check['key'][:12]}, {cost_text(one)} ({task['basis']})"


def _told(value: Any) -> str:
    """A facet's value in a few words: what is empty is left out."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(part)}" for name, part in value.items() if part) or "nothing"
    if isinstance(value, list):
        parts = [part["id"] if isinstance(part, dict) and "id" in part else _told(part) for part in value]
        return " ".join(parts) or "none"
    return "none" if value is None else str(value)


def _places(places: Sequence[str]) -> str:
    """`matrix.yaml:5:6, :7:8`: the file is told once."""
    cost_text, last = [], ""
    for place in places:
        file, colon, at = place.partition(":")
        cost_text.append(f":{at}" if file == last and colon else place)
        last = file
    return ", ".join(cost_text) or "nothing: the cell has no such part"
