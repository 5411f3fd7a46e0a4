"""`npu-matrix status`: the verdicts of a run as a grid in the terminal, filtered by a query, once or live."""

from __future__ import annotations

import click

from harness.serialisation import dumps
from harness.settings import Settings


@click.command(
    "status",
    epilog="\b\nExamples:\n  npu-matrix status\n  npu-matrix status --filter 'verl:0.9 & !pass'\n"
    "  npu-matrix status --watch\n  npu-matrix status --json | jq '.counts'\n\n"
    "Queries are those of the report: words of titles and versions, AXIS:VERSION, AXIS>=VERSION, "
    "status:fail, evidence:hardware, check:loss, tier:static, new, broken; & | ! ( ).",
)
@click.option("--run", "run_id", help="The run to show. Default: the latest run.")
@click.option("--filter", "query", default="", help="Show only the cells and checks that match this query.")
@click.option("--watch", is_flag=True, help="Update the grid until the run ends.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.status).")
@click.pass_obj
def command(settings: Settings, run_id: str | None, query: str, watch: bool, as_json: bool) -> int:
    """Show the verdicts of a run.

    The verdicts are recomputed with the checks and expectations of today. The exit code depends on all
    verdicts of the run, also on those that --filter hides.
    """
    from rich.console import Console

    from harness.cli.status_output import follow_run, read_run, show_run, status_json
    from harness.workspace.open_ledger import open_ledger

    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    console = Console()
    with open_ledger(settings) as ledger:
        view = read_run(settings, ledger, run_id, query)
        if watch and view.stored.run.finished is None:
            view = follow_run(settings, ledger, view.stored.run.run_id, query, console)
        elif as_json:
            click.echo(dumps(status_json(view), indent=2))
        else:
            show_run(settings, view, console)
    if view.stored.run.finished is None and not as_json:
        click.echo(
            "this run has not finished: it is still running, or it was killed; start it again to resume"
        )
    return view.summary.exit_code
