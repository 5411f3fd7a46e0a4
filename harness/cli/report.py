"""`npu-matrix report`: write the report of a stored run again."""

from __future__ import annotations

import click

from harness.cli.ledgers import open_ledger
from harness.cli.reporting import write_report
from harness.cli.stored import open_run
from harness.settings import Settings


@click.command(
    "report", epilog="\b\nExamples:\n  npu-matrix report\n  npu-matrix report --run RUN_ID --reports public"
)
@click.option("--run", "run_id", help="The run to report. Default: the latest.")
@click.option("--reports", help="Where reports are written.")
@click.pass_obj
def command(settings: Settings, run_id: str | None, reports: str | None) -> None:
    """Write HTML, Markdown, JSON, JUnit and badges of a run, judged by today's checks and expectations."""

    settings = settings.overridden({"reports": reports})
    with open_ledger(settings) as ledger:
        stored = open_run(settings, ledger, run_id)
        folder = write_report(
            settings,
            stored.matrix,
            stored.plan,
            stored.verdicts,
            ledger,
            stored.run.run_id,
            stored.executed,
            stored.exit_code,
        )
    click.echo(f"report: {folder / 'index.html'}")
