"""`npu-matrix status`: the verdicts of a run as a grid in the terminal, filtered by a query, once or live."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from harness.serialisation import dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

    from harness.ledger.store import Ledger
    from harness.report.model.report_model import ReportModel
    from harness.report.query.grid_query import GridSelection
    from harness.verdict.plan_verdicts import RunSummary
    from harness.workspace.results.stored_run import StoredRun

#: Minimum seconds between two updates, and how many times as long as reading the wait is at least.
PERIOD, WAIT_FACTOR = 2.0, 4.0


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The current state of a run, and the part of it that the query selects."""

    stored: StoredRun
    model: ReportModel
    selection: GridSelection
    summary: RunSummary


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

    from harness.workspace.open_ledger import open_ledger

    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    console = Console()
    with open_ledger(settings) as ledger:
        view = _read_run(settings, ledger, run_id, query)
        if watch and view.stored.run.finished is None:
            view = _follow(settings, ledger, view.stored.run.run_id, query, console)
        elif as_json:
            click.echo(dumps(_report(view), indent=2))
        else:
            _show(view, console)
    if view.stored.run.finished is None and not as_json:
        click.echo(
            "this run has not finished: it is still running, or it was killed; start it again to resume"
        )
    return view.summary.exit_code


def _read_run(settings: Settings, ledger: Ledger, run_id: str | None, query: str) -> RunView:
    from harness.report.model.report_model import build_model
    from harness.report.query.grid_query import select
    from harness.verdict.plan_verdicts import summarise_verdicts
    from harness.workspace.results.run_report import gather_report_inputs
    from harness.workspace.results.stored_run import mark_unfinished, open_run

    stored = open_run(settings, ledger, run_id)
    inputs = gather_report_inputs(settings, ledger, stored)
    model = build_model(inputs if stored.run.finished else mark_unfinished(inputs))
    return RunView(
        stored=stored,
        model=model,
        selection=select(model, query),
        summary=summarise_verdicts(stored.verdicts),
    )


def _show(view: RunView, console: Console) -> None:
    from harness.report.formats.terminal import print_grid

    print_grid(view.model, console, view.selection)


def _follow(settings: Settings, ledger: Ledger, run_id: str, query: str, console: Console) -> RunView:
    """Show the run until it ends or its process is gone: in a terminal as a grid, else each new result."""
    from rich.live import Live

    from harness.report.formats.terminal import rich_grid
    from harness.workspace.results.stored_run import is_running

    live = console.is_terminal
    printed: dict[tuple[str, str], str] = {}
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while True:
            began = time.monotonic()
            view = _read_run(settings, ledger, run_id, query)
            if live:
                screen.update(rich_grid(view.model, console.width, view.selection), refresh=True)
            else:
                _print_changes(view, printed)
            if view.stored.run.finished is not None or not is_running(settings):
                break
            time.sleep(max(PERIOD, WAIT_FACTOR * (time.monotonic() - began)))
    _show(view, console)
    return view


def _print_changes(view: RunView, printed: dict[tuple[str, str], str]) -> None:
    """Print results that are new or have changed."""
    from harness.report.model.marks import EVIDENCE, STYLES, Mark

    for row, hits in view.selection.rows:
        for check, result in row.results.items():
            evidence = result.shown_evidence
            text = STYLES[result.mark].label + (f" ({EVIDENCE[evidence].label})" if evidence else "")
            if (
                check in hits
                and result.mark is not Mark.NOT_RUN
                and printed.get((row.cell.id, check)) != text
            ):
                printed[row.cell.id, check] = text
                click.echo(f"{row.cell.id} {check}: {text}")


def _report(view: RunView) -> dict[str, object]:
    chosen = {(row.cell.id, check) for row, hits in view.selection.rows for check in hits}
    return {
        "schema": {"name": "npu-matrix.status", "version": 1},
        "run": view.stored.run.run_id,
        "finished": view.stored.run.finished,
        "counts": view.summary.by_status,
        "exit_code": view.summary.exit_code,
        "verdicts": [
            verdict for verdict in view.stored.verdicts if (verdict.cell_id, verdict.check) in chosen
        ],
    }
