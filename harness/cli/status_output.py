"""What `npu-matrix status` shows of a run, once or until the run ends."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click
from rich.console import Console
from rich.live import Live

from harness.ledger.store import Ledger
from harness.report.formats.terminal import print_grid, rich_grid
from harness.report.model.marks import EVIDENCE, STYLES, Mark
from harness.report.model.report_model import ReportModel, build_model
from harness.report.query.grid_query import GridSelection, select
from harness.settings import Settings
from harness.verdict.plan_verdicts import RunSummary, summarise_verdicts
from harness.workspace.planning.plan_history import INDEX_FACT, last_review
from harness.workspace.results.checkout_difference import checks_with_other_keys
from harness.workspace.results.run_report import gather_report_inputs
from harness.workspace.results.stored_run import StoredRun, is_running, mark_unfinished, open_run

#: Minimum seconds between two updates, and how many times as long as reading the wait is at least.
PERIOD, WAIT_FACTOR = 2.0, 4.0


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The current state of a run, and the part of it that the query selects."""

    stored: StoredRun
    model: ReportModel
    selection: GridSelection
    summary: RunSummary


def read_run(settings: Settings, ledger: Ledger, run_id: str | None, query: str) -> RunView:
    """The current state of a run, with the verdicts of today."""
    stored = open_run(settings, ledger, run_id)
    inputs = gather_report_inputs(settings, ledger, stored)
    model = build_model(inputs if stored.run.finished else mark_unfinished(inputs))
    return RunView(
        stored=stored,
        model=model,
        selection=select(model, query),
        summary=summarise_verdicts(stored.verdicts),
    )


def show_run(settings: Settings, view: RunView, console: Console) -> None:
    """Print the grid, what the package index said when the run began, and what the checkout changed since."""
    print_grid(view.model, console, view.selection)
    click.echo(last_review([view.stored.run]))
    changed = checks_with_other_keys(settings, view.stored) if view.stored.run.finished else ()
    if changed:
        cell, check = changed[0]
        click.echo(
            f"note: {len(changed)} of these verdicts are not about this checkout as it is now, for example "
            f"{check} of {cell}: run `npu-matrix run`; `npu-matrix why-rerun {cell}` says what changed"
        )


def follow_run(settings: Settings, ledger: Ledger, run_id: str, query: str, console: Console) -> RunView:
    """Show the run until it ends or its process is gone: in a terminal as a grid, else each new result."""
    live = console.is_terminal
    printed: dict[tuple[str, str], str] = {}
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while True:
            began = time.monotonic()
            view = read_run(settings, ledger, run_id, query)
            if live:
                screen.update(rich_grid(view.model, console.width, view.selection), refresh=True)
            else:
                _print_changes(view, printed)
            if view.stored.run.finished is not None or not is_running(settings):
                break
            time.sleep(max(PERIOD, WAIT_FACTOR * (time.monotonic() - began)))
    show_run(settings, view, console)
    return view


def _print_changes(view: RunView, printed: dict[tuple[str, str], str]) -> None:
    """Print results that are new or have changed."""
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


def status_json(view: RunView) -> dict[str, object]:
    """The state of a run as JSON (schema npu-matrix.status)."""
    chosen = {(row.cell.id, check) for row, hits in view.selection.rows for check in hits}
    return {
        "schema": {"name": "npu-matrix.status", "version": 1},
        "run": view.stored.run.run_id,
        "finished": view.stored.run.finished,
        "counts": view.summary.by_status,
        "exit_code": view.summary.exit_code,
        "package_index": view.stored.run.host.get(INDEX_FACT, ""),
        "verdicts": [
            verdict for verdict in view.stored.verdicts if (verdict.cell_id, verdict.check) in chosen
        ],
    }
