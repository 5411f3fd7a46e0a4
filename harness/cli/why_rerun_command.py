"""`npu-matrix why-rerun CELL`: what changed since the checks of a cell last ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.errors import InputError
from harness.serialisation import dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.run_record import RunRecord


@click.command(
    "why-rerun",
    epilog="\b\nExamples:\n  npu-matrix why-rerun gspo-async\n  npu-matrix why-rerun CELL --run RUN_ID",
)
@click.argument("cell", shell_complete=complete_cells)
@click.option("--run", "run_id", help="Compare with this run. Default: the latest run with this cell.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Settings, cell: str, run_id: str | None, as_json: bool) -> None:
    """Show for each check of CELL whether its stored outcome is reused, and if not, what has changed."""
    from harness.plan.change.rerun_reasons import rerun_reasons
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.planning.followed_branches import follow_branches
    from harness.workspace.planning.open_plan import open_matrix, open_plan
    from harness.workspace.planning.plan_history import read_history
    from harness.workspace.planning.plan_selection import find_cell

    matrix, _ = follow_branches(open_matrix(settings))
    found = find_cell(matrix, settings["profile"], cell)
    context = open_plan(settings, choose=lambda _matrix: [found])
    with open_ledger(settings) as ledger:
        earlier = ledger.run(run_id) if run_id else _last_with(ledger.runs(), found.id)
    if run_id and earlier is None:
        raise InputError(f"there is no run {run_id!r}", fix="leave out --run for the latest")
    known = read_history(context)
    reasons = rerun_reasons(
        context.plan, found.id, earlier.plan if earlier else None, set(known.outcomes), known.not_reusable
    )
    if as_json:
        report = {
            "schema": {"name": "npu-matrix.why-rerun", "version": 1},
            "cell": found.id,
            "compared_with": earlier.run_id if earlier else None,
            "checks": reasons,
        }
        click.echo(dumps(report, indent=2))
        return
    click.echo(
        f"{found.id} against {f'run {earlier.run_id}' if earlier else 'no run: the cell never ran here'}"
    )
    for check in reasons:
        click.echo(f"  {check.check:<12} {'reused' if check.reused else 'runs'}: {check.reason}")
        for change in check.changes:
            click.echo(f"  {'':<12}   {change}")


def _last_with(runs: Sequence[RunRecord], cell_id: str) -> RunRecord | None:
    return next((run for run in runs if any(cell.id == cell_id for cell in run.plan.cells)), None)
