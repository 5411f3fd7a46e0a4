"""Executes a plan for `npu-matrix run`: shows progress, prints the results, writes the report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from harness.builds.cell.cell_command import cell_launcher
from harness.cli.run_output import print_summary
from harness.cli.stated_exit import StatedExit
from harness.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    HarnessError,
    InfrastructureError,
    InputError,
    caused_by,
)
from harness.ledger.store import Ledger
from harness.run.executors.executor import Executor
from harness.run.scheduling.board import console_observer, json_lines
from harness.run.scheduling.events import Observer, RunEvent
from harness.run.scheduling.run_result import RunResult
from harness.run.scheduling.scheduler import RunPolicy, run_plan
from harness.verdict.plan_verdicts import judge_plan, summarise_verdicts
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.reference_recording import record_references, recordings_of_run, run_program
from harness.workspace.execution.run_setup import (
    host_record,
)
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.index_review import IndexReview, review_index
from harness.workspace.planning.migration_status import finished_migrations
from harness.workspace.planning.open_plan import PlanContext, cards_by_cell, expectations
from harness.workspace.planning.plan_history import INDEX_FACT, check_history
from harness.workspace.results.run_report import write_report
from harness.workspace.results.stored_run import StoredRun, recorded_run


def execute_plan(
    context: PlanContext,
    executor: Executor,
    stopped: Callable[[], bool],
    *,
    rerun: Collection[str],
    keep_going: bool,
    events: str | None,
) -> tuple[RunResult, StatedExit]:
    """Run the plan and write the report; returns the result and the exit code, which is not printed yet.

    rerun: names of checks to run again even if they have stored outcomes.
    """
    settings = context.settings
    with open_ledger(settings) as ledger:
        _, failure_rate = check_history(
            ledger, {task.check.name: task.check for task in context.plan.tasks.values()}
        )
        index = review_index(context.plan, ledger)
        policy = RunPolicy(
            keep_going=keep_going,
            rerun={key for key, task in context.plan.tasks.items() if task.check.name in rerun},
            full=bool(rerun),
            outdated=index.outdated,
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
                host={**host_record(context), INDEX_FACT: str(index)},
            )
        return result, _conclude(context, ledger, result, index)


def record_reference_sets(
    context: PlanContext, result: RunResult, folder: Path, stopped: Callable[[], bool]
) -> int:
    """Record reference sets; returns EXIT_INTERRUPTED if the user interrupted it, else 0."""
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


def _conclude(context: PlanContext, ledger: Ledger, result: RunResult, index: IndexReview) -> StatedExit:
    expected = expectations(context.matrix, context.settings["profile"])
    verdicts = judge_plan(context.plan, result.outcomes, result.without_outcome, expected)
    summary = summarise_verdicts(verdicts)
    code = StatedExit(summary.exit_code, summary.reasons)
    if result.interrupted:
        code = StatedExit(EXIT_INTERRUPTED, ("interrupted; the same command resumes", *summary.reasons))
    ledger.finish_run(result.run_id, int(code))
    # Print before writing the report, so that the results are shown even if the report cannot be written.
    print_summary(context.settings, context.plan, verdicts, summary, result)
    clock = ledger.clock_notice(result.run_id)
    for notice in (
        *context.plan.notices,
        *finished_migrations(context.matrix, context.plan, verdicts),
        *([clock] if clock else []),
        *([f"package index: {index}"] if index.unreached else []),
    ):
        click.echo(f"note: {notice}")
    stored = StoredRun(
        run=recorded_run(ledger, result.run_id),
        plan=context.plan,
        matrix=context.matrix,
        verdicts=verdicts,
        executed=result.executed_keys,
    )
    try:
        folder = write_report(context.settings, ledger, stored)
    except (HarnessError, OSError) as error:
        shown = caused_by(InfrastructureError(str(error)), error) if isinstance(error, OSError) else error
        for problem in shown.problems:
            click.echo(f"error: {problem}", err=True)
        code = StatedExit(int(code) or EXIT_INCOMPLETE, (*code.reasons, "the report could not be written"))
        ledger.finish_run(result.run_id, int(code))
    else:
        click.echo(f"report: {folder / 'index.html'}")
    return code


@contextlib.contextmanager
def _observing(events: str | None) -> Iterator[Observer]:
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
