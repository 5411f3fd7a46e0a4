"""`npu-matrix run`: run the planned checks, resume an interrupted run, write the report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_INTERRUPTED, InfrastructureError, InputError
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.store import Ledger
    from harness.run.executors.executor import Executor
    from harness.run.scheduling.events import Observer, RunEvent
    from harness.run.scheduling.run_result import RunResult
    from harness.workspace.planning.open_plan import PlanContext


@click.command(
    "run",
    epilog="\b\nExamples:\n  npu-matrix run\n  npu-matrix run --only 'verl-0-9-1*'\n"
    "  npu-matrix run --only CELL --check loss --fresh\n  npu-matrix run --events events.jsonl\n"
    "  npu-matrix run --executor ray --ray-address 10.0.0.1:6379",
)
@click.option(
    "--only", multiple=True, metavar="GLOB", help="Cells to run; a,b or repeated. Default: the profile."
)
@click.option(
    "--check", "checks", multiple=True, help="Checks to run, with the checks they depend on; a,b or repeated."
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Run the named checks again even if they have stored outcomes; without --check, all.",
)
@click.option(
    "--keep-going", is_flag=True, help="Also run more expensive tiers of cells that failed a cheaper tier."
)
@click.option("--keep-work", is_flag=True, help="Keep the working folders of tasks that completed.")
@click.option("--jobs", help="Number of tasks at a time; 0 means one per CPU.")
@click.option("--executor", help="Where tasks run: `local`, or `ray` for an existing Ray cluster.")
@click.option(
    "--ray-address", help="Address of the Ray cluster. Default: the cluster that this machine belongs to."
)
@click.option("--engine", help="What builds cells: venv, docker or podman.")
@click.option("--base-image", help="Base image of container cells. Default: the image that the lock names.")
@click.option("--reports", help="Folder for the report.")
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Wait while another run uses this checkout, or stop at once. Default: wait.",
)
@click.option(
    "--events",
    type=click.Path(dir_okay=False),
    help="Append every event to this file, one JSON object per line.",
)
@click.option(
    "--record-reference",
    type=click.Path(file_okay=False, path_type=Path),
    help="After the run, record reference sets of the trainings of these cells in this folder.",
)
@click.pass_obj
def command(settings: Settings, /, only: tuple[str, ...], checks: tuple[str, ...], **options: Any) -> int:
    """Run the tasks that have no stored outcome, then write the report.

    Outcomes of unchanged tasks are reused. To resume an interrupted run, start the same command again.
    """
    from harness.report.publish.publish import ensure_writable
    from harness.run.executors.executor import LocalExecutor
    from harness.workspace.execution.run_setup import exclusive_run, local_site, ray_cluster
    from harness.workspace.planning.open_plan import open_plan
    from harness.workspace.planning.plan_selection import split_names

    flags = {
        name: options[name] for name in ("jobs", "reports", "engine", "base_image", "executor", "ray_address")
    }
    flags["wait"] = None if options["wait"] is None else str(options["wait"]).lower()
    settings = settings.overridden(flags)
    with contextlib.ExitStack() as stack:
        cluster = ray_cluster(settings)
        if cluster is not None:
            stack.callback(cluster.close)
        context = open_plan(settings, only=only, checks=checks, nodes=cluster.nodes if cluster else ())
        ensure_writable(settings.path("reports"))
        stopped = stack.enter_context(exclusive_run(settings))
        site = local_site(settings, keep=options["keep_work"], cards=context.host.usable_chips)
        executor = cluster or LocalExecutor(site, settings.jobs)
        stack.callback(executor.close)
        all_planned = {task.check.name for task in context.plan.tasks.values()}
        rerun = (set(split_names(checks)) or all_planned) if options["fresh"] else frozenset()
        result, code = _run(
            context,
            executor,
            stopped,
            rerun=rerun,
            keep_going=options["keep_going"],
            events=options["events"],
        )
        if options["record_reference"] is None or result.interrupted:
            return code
        return _record(context, result, options["record_reference"], stopped) or code


def _run(
    context: PlanContext,
    executor: Executor,
    stopped: Callable[[], bool],
    *,
    rerun: Collection[str],
    keep_going: bool,
    events: str | None,
) -> tuple[RunResult, int]:
    """Run the plan and write the report; returns the result and the exit code.

    rerun: names of checks to run again even if they have stored outcomes.
    """
    from harness.ledger.store import Ledger
    from harness.run.scheduling.scheduler import RunPolicy, run_plan
    from harness.verdict.verdict import judge_outcome
    from harness.workspace.execution.run_setup import host_record
    from harness.workspace.planning.open_plan import cards_by_cell
    from harness.workspace.planning.plan_history import check_history

    settings = context.settings
    with Ledger.open(settings.path("state")) as ledger:
        _, failure_rate = check_history(
            ledger, {task.check.name: task.check for task in context.plan.tasks.values()}
        )
        policy = RunPolicy(
            keep_going=keep_going,
            rerun={key for key, task in context.plan.tasks.items() if task.check.name in rerun},
            failure_rate=failure_rate,
            cards=cards_by_cell(context),
        )
        with _observing(events) as observer:
            result = run_plan(
                context.plan,
                ledger,
                executor,
                judge_outcome,
                policy=policy,
                observer=observer,
                stopped=stopped,
                argv=sys.argv[1:],
                host=host_record(context),
            )
        return result, _conclude(context, ledger, result)


def _record(context: PlanContext, result: RunResult, folder: Path, stopped: Callable[[], bool]) -> int:
    """Record reference sets; returns EXIT_INTERRUPTED if the user interrupted it, else 0."""
    from harness.builds.cell.cell_command import cell_launcher
    from harness.workspace.execution.reference_recording import (
        record_references,
        recordings_of_run,
        run_program,
    )

    run = partial(run_program, stopped=stopped)
    try:
        for path in record_references(
            recordings_of_run(context.plan, result), folder, cell_launcher(context.settings.cache), run
        ):
            click.echo(f"reference: {path}")
    except InfrastructureError:
        if not stopped():
            raise
        click.echo("the recording was interrupted; the same command continues it", err=True)
        return EXIT_INTERRUPTED
    return 0


def _conclude(context: PlanContext, ledger: Ledger, result: RunResult) -> int:
    from harness.cli.run_output import print_summary
    from harness.verdict.plan_verdicts import judge_plan, summarise_verdicts
    from harness.workspace.planning.migration_status import finished_migrations
    from harness.workspace.planning.open_plan import expectations
    from harness.workspace.results.run_report import write_report
    from harness.workspace.results.stored_run import StoredRun, recorded_run

    expected = expectations(context.matrix, context.settings["profile"])
    verdicts = judge_plan(context.plan, result.outcomes, result.without_outcome, expected)
    summary = summarise_verdicts(verdicts)
    code = EXIT_INTERRUPTED if result.interrupted else summary.exit_code
    ledger.finish_run(result.run_id, code)
    # Print before writing the report, so that the results are shown even if the report cannot be written.
    print_summary(context.settings, context.plan, verdicts, summary, result)
    for notice in (*context.plan.notices, *finished_migrations(context.matrix, context.plan, verdicts)):
        click.echo(f"note: {notice}")
    stored = StoredRun(
        run=recorded_run(ledger, result.run_id),
        plan=context.plan,
        matrix=context.matrix,
        verdicts=verdicts,
        executed=result.executed_keys,
    )
    folder = write_report(context.settings, ledger, stored)
    click.echo(f"report: {folder / 'index.html'}")
    return code


@contextlib.contextmanager
def _observing(events: str | None) -> Iterator[Observer]:
    from rich.console import Console

    from harness.run.scheduling.board import console_observer, json_lines

    with contextlib.ExitStack() as stack:
        board = stack.enter_context(console_observer(Console(stderr=True), os.environ))
        if events is None:
            yield board
            return
        try:
            stream = stack.enter_context(Path(events).open("a", encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot write events to {events}", why=str(error), fix="name another file"
            ) from error
        write = json_lines(stream)

        def both(event: RunEvent) -> None:
            board(event)
            write(event)

        yield both
