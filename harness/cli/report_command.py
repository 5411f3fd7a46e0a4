"""`npu-matrix report`: write the report of a stored run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.store import Ledger
    from harness.workspace.results.stored_run import StoredRun


@click.command(
    "report",
    epilog="\b\nExamples:\n  npu-matrix report\n  npu-matrix report --run RUN_ID --reports public\n"
    "  npu-matrix report --since 2026-11-19\n  npu-matrix report --run main --since v1.2\n"
    "  npu-matrix report --watch\n  npu-matrix report --merged --branch status-page\n"
    "  npu-matrix patches survival --json > survival.json && npu-matrix report --survival survival.json\n"
    "  npu-matrix api survival verl vllm --range 0.9.0..0.11.0 --json > names.json && "
    "npu-matrix report --names names.json\n"
    "  npu-matrix patches forecast --repo verl.git --json > heads.json\n"
    "  npu-matrix report --patches heads.json",
)
@click.option("--run", "run_id", help="A run, or a commit that was run. Default: the latest run.")
@click.option(
    "--since",
    help="Show changes since this run (its id, the beginning of it, or a commit) or since a day (YYYY-MM-DD, "
    "the last verdicts of all runs until then). Default: the previous run.",
)
@click.option(
    "--survival",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output of `npu-matrix patches survival --json`, for the patches page.",
)
@click.option(
    "--names",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output of `npu-matrix api survival --json`, for the patches page.",
)
@click.option(
    "--patches",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Output of `patches forecast`, `check`, `summary` or `rebase` with --json; may be repeated.",
)
@click.option(
    "--merged",
    is_flag=True,
    help="Report the whole profile, with the stored outcomes of all runs and of all machines whose ledgers "
    "were merged, instead of one run. Nothing is executed.",
)
@click.option("--watch", is_flag=True, help="Update the report until the run ends.")
@click.option("--reports", help="Folder for the report.")
@click.option(
    "--branch",
    help="Also commit the report to this branch of the checkout, beside earlier ones. Nothing is pushed.",
)
@click.pass_obj
def command(
    settings: Settings,
    /,
    run_id: str | None,
    since: str | None,
    survival: Path | None,
    names: Path | None,
    patches: tuple[Path, ...],
    merged: bool,
    watch: bool,
    reports: str | None,
    branch: str | None,
) -> None:
    """Write the report of a run as HTML, Markdown, JSON, CSV, Atom, JUnit, metrics and badges.

    The verdicts are recomputed with the checks and expectations of today.
    """
    from harness.errors import InputError
    from harness.report.model.earlier_runs import end_of_day
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.merged_run import record_merged_run
    from harness.workspace.results.run_report import write_report
    from harness.workspace.results.stored_run import exit_code_today, find_run, open_run

    if merged and (run_id or watch):
        raise InputError(
            "--merged reports no single run", fix="leave out --run and --watch, or leave out --merged"
        )
    settings = settings.overridden({"reports": reports})
    with open_ledger(settings) as ledger:
        if merged:
            run_id = record_merged_run(settings, ledger)
        stored = open_run(settings, ledger, find_run(settings, ledger, run_id) if run_id else None)
        if watch:
            stored = _follow(settings, ledger, stored)
        folder = write_report(
            settings,
            ledger,
            stored,
            exit_code=exit_code_today(stored),
            since=find_run(settings, ledger, since) if since and end_of_day(since) is None else since,
            survival=survival,
            names=names,
            patches=patches,
        )
    click.echo(f"report: {folder / 'index.html'}")
    if branch:
        from harness.report.publish.branch import publish_to_branch

        published = publish_to_branch(settings.root, branch, folder, stored.run.run_id)
        state = "has it already" if published.unchanged else f"commit {published.commit[:12]}"
        click.echo(f"branch {branch}: {state}, with {published.earlier} earlier reports")


def _follow(settings: Settings, ledger: Ledger, stored: StoredRun) -> StoredRun:
    """Update the report of a run until it ends or its process is gone; returns its final state."""
    from harness.cli.status_output import PERIOD, WAIT_FACTOR
    from harness.report.publish.live_report import LiveReport
    from harness.workspace.results.run_report import gather_report_inputs
    from harness.workspace.results.stored_run import is_running, mark_unfinished, open_run

    live = None
    while stored.run.finished is None and is_running(settings):
        began = time.monotonic()
        inputs = mark_unfinished(gather_report_inputs(settings, ledger, stored))
        if live is None:
            live = LiveReport(inputs, settings.path("reports"))
            click.echo(f"following run {stored.run.run_id}: {settings.path('reports') / 'index.html'}")
        else:
            live.take(inputs)
        time.sleep(max(PERIOD, WAIT_FACTOR * (time.monotonic() - began)))
        stored = open_run(settings, ledger, stored.run.run_id)
    return stored
