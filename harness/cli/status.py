"""`npu-matrix status`: the grid of the latest run, in the terminal."""

from __future__ import annotations

import json

import click

from harness.cli.ledgers import open_ledger
from harness.cli.reporting import gather_run
from harness.cli.stored import open_run
from harness.settings import Settings


@click.command(
    "status", epilog="\b\nExamples:\n  npu-matrix status\n  npu-matrix status --json | jq '.counts'"
)
@click.option("--run", "run_id", help="The run to show. Default: the latest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.status).")
@click.pass_obj
def command(settings: Settings, run_id: str | None, as_json: bool) -> int:
    """Show the grid of a run; exits with the code its verdicts have today."""
    from harness.report.model import build_model
    from harness.report.terminal import print_grid
    from harness.verdict.summary import summarise
    from harness.verdict.verdict import verdict_json

    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
        summary = summarise(stored.verdicts)
        if as_json:
            report = {
                "schema": {"name": "npu-matrix.status", "version": 1},
                "run": stored.run.run_id,
                "finished": stored.run.finished,
                "counts": summary.by_status,
                "exit_code": summary.exit_code,
                "verdicts": [verdict_json(verdict) for verdict in stored.verdicts],
            }
            click.echo(json.dumps(report, indent=2))
            return summary.exit_code
        from rich.console import Console

        inputs = gather_run(
            settings,
            stored.matrix,
            stored.plan,
            stored.verdicts,
            ledger,
            stored.run.run_id,
            stored.executed,
            stored.exit_code,
        )
        print_grid(build_model(inputs), Console())
    if stored.run.finished is None:
        click.echo("this run has not finished: it goes on, or was killed; the same command resumes it")
    return summary.exit_code
