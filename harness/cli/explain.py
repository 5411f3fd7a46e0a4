"""`npu-matrix explain CELL`: why a cell is in or out, and where each of its values comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from harness.cli.bench import facet_inputs, find_cell, open_bench
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.matrix.cells import Cell


@click.command(
    "explain", epilog="\b\nExamples:\n  npu-matrix explain gspo-async\n  npu-matrix explain --json CELL"
)
@click.argument("cell")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, cell: str, as_json: bool) -> None:
    """Show why CELL (an id, its beginning, a stack's name) is in or out, and where each facet comes from."""
    bench = open_bench(settings)
    found = find_cell(bench.matrix, settings["profile"], cell)
    report = _report(bench, found)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for line in _lines(report):
        click.echo(line)


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
