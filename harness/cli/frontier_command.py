"""`npu-matrix frontier`: the newest compatible versions, and what blocks newer ones."""

from __future__ import annotations

import json

import click

from harness.settings import Settings


@click.command(
    "frontier",
    epilog="\b\nExamples:\n"
    "  npu-matrix frontier verl --with cann=8.5.0 --with torch_npu=2.8.0 --with soc=a2\n"
    "  npu-matrix frontier --with soc=a2 --with 'cann>=9.0.0'\n"
    "  npu-matrix frontier verl --with device=sim --probe build\n"
    "  npu-matrix frontier verl=0.9.1 --on verl-0-7-1",
)
@click.argument("wanted", required=False, metavar="[AXIS | AXIS=VALUE]")
@click.option(
    "--with",
    "given",
    multiple=True,
    metavar="AXIS=VALUE",
    help="Only cells with this version; also >=, <, !=. May be repeated.",
)
@click.option(
    "--on",
    "stack",
    metavar="CELL",
    help="With AXIS=VALUE: show what blocks this version on this cell or stack.",
)
@click.option(
    "--probe",
    type=click.Choice(["static", "build", "numerics", "convergence"]),
    help="With AXIS: run missing checks, cheapest tier first, up to this tier.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.frontier).")
@click.pass_obj
def command(
    settings: Settings,
    wanted: str | None,
    given: tuple[str, ...],
    stack: str | None,
    probe: str | None,
    as_json: bool,
) -> None:
    """Find the newest version of an axis (or of all axes) that is compatible with the given versions.

    Only cells for NPU hardware are considered, unless a condition names the device (--with device=sim).

    Uses the rules of the matrix and stored outcomes. For a version without outcomes, the command that tests
    it is shown. With --probe the missing checks are run, newest version and cheapest tier first, until the
    newest working version is known. If a version fails a tier, its more expensive tiers are skipped.
    """
    from harness.cli.frontier_output import (
        describe_newest_cells,
        describe_newest_versions,
        describe_obstacles,
    )
    from harness.workspace.planning.open_plan import open_matrix

    matrix = open_matrix(settings)
    if probe and (wanted is None or stack is not None):
        raise click.UsageError("--probe needs AXIS without a value")
    if (stack is not None) != (wanted is not None and "=" in wanted):
        raise click.UsageError("AXIS=VALUE and --on need each other")
    if stack is not None and given:
        raise click.UsageError("--with needs AXIS without a value")
    if stack is not None and wanted is not None:
        report, lines = describe_obstacles(settings, matrix, wanted, stack)
    elif wanted is not None:
        report, lines = describe_newest_versions(settings, matrix, wanted, given, probe)
    else:
        report, lines = describe_newest_cells(settings, matrix, given)
    click.echo(json.dumps({**_SCHEMA, **report}, indent=2) if as_json else "\n".join(lines))


_SCHEMA = {"schema": {"name": "npu-matrix.frontier", "version": 1}}
