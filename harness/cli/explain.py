"""`npu-matrix explain CELL`: why a cell is in or out, and where each of its values comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from harness.cli.bench import facet_inputs, find_cell, open_bench, open_matrix, relative
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.matrix.cells import Cell


@click.command(
    "explain",
    epilog="\b\nExamples:\n  npu-matrix explain gspo-async\n  npu-matrix explain --json CELL\n"
    "  npu-matrix explain --axes verl=0.9.1,vllm_ascend=0.18.0",
)
@click.argument("cell", required=False)
@click.option(
    "--axes", multiple=True, metavar="AXIS=VALUE", help="Explain a combination instead; a,b or repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, cell: str | None, axes: tuple[str, ...], as_json: bool) -> None:
    """Show why CELL (an id, its beginning, a stack's name) is in or out, and where each facet comes from.

    With --axes: the rules against a combination of versions, their proofs, and the nearest valid cells.
    """
    if bool(cell) == bool(axes):
        raise click.UsageError("name a CELL, or a combination with --axes")
    if axes:
        combination = _combination(settings, axes)
        lines = [json.dumps(combination, indent=2)] if as_json else _combination_lines(combination)
        click.echo("\n".join(lines))
        return
    bench = open_bench(settings)
    found = find_cell(bench.matrix, settings["profile"], cell or "")
    report = _report(bench, found)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for line in _lines(report):
        click.echo(line)


def _combination(settings: Settings, axes: tuple[str, ...]) -> dict[str, Any]:
    from harness.plan.exclusion import Objection, explain, parse_axes

    matrix = open_matrix(settings)
    found = explain(matrix, parse_axes(matrix, axes))

    def told(objection: Objection) -> dict[str, str]:
        return {
            "rule": objection.rule,
            "what": objection.what,
            "reason": objection.reason,
            "source": objection.source,
            "where": relative(objection.where, settings.root),
        }

    return {
        "schema": {"name": "npu-matrix.explain-axes", "version": 1},
        "axes": dict(found.axes),
        "valid": bool(found.cells),
        "violated": [told(objection) for objection in found.violated],
        "contradiction": [told(objection) for objection in found.contradiction],
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
        verdict = [f"{asked}: excluded by {len(report['violated'])} of the rules"]
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


def _report(bench: Any, cell: Cell) -> dict[str, Any]:
    from harness.plan.facets import FACETS, facet_values

    entries = [entry for entry in bench.plan.entries if entry.cell_id == cell.id]
    return {
        "schema": {"name": "npu-matrix.explain", "version": 1},
        "cell": cell.id,
        "title": cell.title,
        "stack": cell.stack,
        "axes": {
            axis: {"value": value, "from": str(cell.provenance.get(axis, ""))}
            for axis, value in cell.axes.items()
        },
        "pins": [
            {"requirement": pin.requirement, "reason": pin.reason, "source": pin.source} for pin in cell.pins
        ],
        "findings": [{"what": finding.what, "source": finding.source} for finding in cell.findings],
        "facets": facet_values(cell, tuple(FACETS), facet_inputs(bench.settings, bench.matrix)),
        "checks": [
            {
                "check": entry.check,
                "question": entry.question,
                "key": entry.key,
                "not_run": entry.skip.reason if entry.skip else "",
            }
            for entry in entries
        ],
    }


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['cell']}: {report['title']}", "", "in the plan because of:"]
    width = max(len(axis) for axis in report["axes"])
    lines += [
        f"  {axis:<{width}}  {value['value']:<28} {value['from']}" for axis, value in report["axes"].items()
    ]
    lines += ["", "pins:"] + [
        f"  {pin['requirement']}\n      because {pin['reason']} ({pin['source']})" for pin in report["pins"]
    ]
    if report["findings"]:
        lines += ["", "known inconsistencies of its source:"]
        lines += [f"  {finding['what']} ({finding['source']})" for finding in report["findings"]]
    lines += ["", "checks:"]
    for check in report["checks"]:
        answer = f"not run: {check['not_run']}" if check["not_run"] else f"key {check['key'][:12]}"
        lines.append(f"  {check['check']:<12} {check['question']}\n  {'':<12} {answer}")
    return lines
