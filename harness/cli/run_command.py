"""`npu-matrix run`: run the plan, resume what was interrupted, report."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.migrations_command import ended
from harness.errors import EXIT_INTERRUPTED, InfrastructureError, InputError
from harness.settings import Settings
from harness.workspace.open_plan import Bench, cards, cell_entry, each, expectations, host_kind, open_bench
from harness.workspace.plan_history import history
from harness.workspace.reporting import print_summary, write_report

if TYPE_CHECKING:
    from harness.ledger.store import Ledger
    from harness.run.executors.executor import Executor
    from harness.run.executors.ray_executor import RayExecutor
    from harness.run.scheduling.events import Event, Observer
    from harness.run.scheduling.run_result import RunResult


@click.command(
    "run",
    epilog="\b\nExamples:\n  npu-matrix run\n  npu-matrix run --only 'verl-0-9-1*'\n"
    "  npu-matrix run --only CELL --check loss --fresh\n  npu-matrix run --events events.jsonl\n"
    "  npu-matrix run --executor ray --ray-address 10.0.0.1:6379",
)
@click.option("--only", multiple=True, metavar="GLOB", help="Cells to run; a,b or repeated.")
@click.option("--check", "checks", multiple=True, help="Checks to run, with what they need; a,b or repeated.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Run the named checks (without --check all) even if known.",
)
@click.option("--keep-going", is_flag=True, help="Spend dearer tiers on cells that failed a cheaper one.")
@click.option("--keep-work", is_flag=True, help="Keep the working folders of completed tasks.")
@click.option("--jobs", help="Tasks at a time; 0 means one per CPU.")
@click.option("--executor", help="Where tasks run: local, or ray for an existing Ray cluster.")
@click.option("--ray-address", help="The Ray cluster. Default: the one this machine belongs to.")
@click.option("--engine", help="What cells are built with: venv, docker or podman.")
@click.option("--base-image", help="Base image of container cells. Default: the lock's own.")
@click.option("--reports", help="Where reports are written.")
@click.option("--wait/--no-wait", default=None, help="Wait for another run in this checkout.")
@click.option("--events", type=click.Path(dir_okay=False), help="Append every event to this file as JSON.")
@click.option(
    "--record-reference",
    type=click.Path(file_okay=False, path_type=Path),
    help="Then record reference sets of what was trained in these cells, into this folder.",
)
@click.pass_obj
def command(settings: Settings, /, only: tuple[str, ...], checks: tuple[str, ...], **options: Any) -> int:
    """Run what the ledger cannot answer yet, write the report, and exit with a documented code.

    An interrupted run is resumed by the same command. Outcomes of unchanged tasks are reused.
    """
    from harness.report.publish.publish import ensure_writable
    from harness.run.executors.executor import LocalExecutor
    from harness.run.programs.interruption import Interruption
    from harness.run.scheduling.run_lock import run_lock

    flags = {
        name: options[name] for name in ("jobs", "reports", "engine", "base_image", "executor", "ray_address")
    }
    flags["wait"] = None if options["wait"] is None else str(options["wait"]).lower()
    settings = settings.overridden(flags)
    with contextlib.ExitStack() as stack:
        cluster = _cluster(settings)
        if cluster is not None:
            stack.callback(cluster.close)
        bench = open_bench(settings, only=only, checks=checks, nodes=cluster.nodes if cluster else ())
        ensure_writable(settings.path("reports"))
        stopped = stack.enter_context(Interruption())
        lock = run_lock(
            settings.path("state"),
            command=["npu-matrix", *sys.argv[1:]],
            wait=settings.wait,
            tell=lambda text: click.echo(text, err=True),
            stopped=stopped,
        )
        stack.enter_context(lock)
        executor = cluster or LocalExecutor(_site(bench, keep=options["keep_work"]), settings.jobs)
        stack.callback(executor.close)
        return _run(bench, executor, set(each(checks)), options, stopped)


def _cluster(settings: Settings) -> RayExecutor | None:
    """The executor on a Ray cluster, None where tasks run on this machine."""
    if settings["executor"] == "local":
        return None
    if settings["executor"] != "ray":
        origin = settings.values["executor"].origin
        raise InputError(
            f"there is no executor {settings['executor']!r}", why=f"set by {origin}", fix="local, or ray"
        )
    from harness.ledger.artifacts import ArtifactStore
    from harness.run.executors.ray_executor import RayExecutor, RemoteSite

    return RayExecutor(
        ArtifactStore(settings.path("state") / "artifacts"),
        settings.root,
        RemoteSite(cell=cell_entry),
        settings["ray_address"],
    )


def _run(bench: Bench, executor: Executor, checks: set[str], options: dict[str, Any], stopped: Any) -> int:
    from harness.ledger.store import Ledger
    from harness.run.scheduling.scheduler import Policy, run_plan
    from harness.verdict.verdict import judge_outcome

    settings = bench.settings
    fresh = {key for key, task in bench.plan.tasks.items() if not checks or task.check.name in checks}
    with Ledger.open(settings.path("state")) as ledger:
        _, failure_rate = history(ledger, {task.check.name: task.check for task in bench.plan.tasks.values()})
        policy = Policy(
            keep_going=options["keep_going"],
            rerun=fresh if options["fresh"] else frozenset(),
            failure_rate=failure_rate,
            cards=cards(bench),
        )
        with _observing(options["events"]) as observer:
            result = run_plan(
                bench.plan,
                ledger,
                executor,
                judge_outcome,
                policy=policy,
                observer=observer,
                stopped=stopped,
                argv=sys.argv[1:],
                host=_host(bench),
            )
        code = _conclude(bench, ledger, result)
    if options["record_reference"] is not None and not result.interrupted:
        return _record(bench, result, options["record_reference"], stopped) or code
    return code


def _record(bench: Bench, result: RunResult, folder: Path, stopped: Callable[[], bool]) -> int:
    """Exit code of the recording: 0, or that of an interruption."""
    from harness.workspace.reference_recording import record, run_program, wanted

    run = partial(run_program, stopped=stopped)
    try:
        for path in record(wanted(bench.plan, result), folder, cell_entry(bench.settings.cache), run):
            click.echo(f"reference: {path}")
    except InfrastructureError:
        if not stopped():
            raise
        click.echo("the recording was interrupted; the same command goes on with it", err=True)
        return EXIT_INTERRUPTED
    return 0


def _conclude(bench: Bench, ledger: Ledger, result: RunResult) -> int:
    from harness.verdict.join import Disposition, judge_plan
    from harness.verdict.run_summary import summarise

    dispositions = {
        (entry.entry.cell_id, entry.entry.check): Disposition(status=entry.status, reason=entry.reason)
        for entry in result.entries
        if entry.outcome is None
    }
    verdicts = judge_plan(
        bench.plan, result.outcomes, dispositions, expectations(bench.matrix, bench.settings["profile"])
    )
    summary = summarise(verdicts)
    code = EXIT_INTERRUPTED if result.interrupted else summary.exit_code
    ledger.finish_run(result.run_id, code)
    # Before the report: a folder that cannot be written must not keep anybody from what came out.
    print_summary(bench.settings, bench.plan, verdicts, summary, result)
    for notice in (*bench.plan.notices, *ended(bench.matrix, bench.plan, verdicts)):
        click.echo(f"note: {notice}")
    executed = {entry.outcome.key for entry in result.entries if entry.outcome and not entry.reused}
    folder = write_report(
        bench.settings, bench.matrix, bench.plan, verdicts, ledger, result.run_id, executed, code
    )
    click.echo(f"report: {folder / 'index.html'}")
    return code


def _site(bench: Bench, *, keep: bool) -> Any:
    from harness.run.jobs.job import Site

    settings = bench.settings
    cache = settings.cache
    return Site(
        root=settings.root,
        state=settings.path("state"),
        cache=cache,
        environ=os.environ,
        cell=cell_entry(cache),
        keep=keep,
        cards=bench.host.usable_chips,
    )


def _host(bench: Bench) -> dict[str, str]:
    import platform

    from harness.plan.change.revision import checkout_revision

    return {
        "revision": checkout_revision(bench.settings.root),
        "system": platform.platform(),
        "python": platform.python_version(),
        **host_kind(bench.host),
        "cann": bench.host.cann or "none",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@contextlib.contextmanager
def _observing(events: str | None) -> Iterator[Observer]:
    from rich.console import Console

    from harness.run.scheduling.board import json_lines, observing

    with contextlib.ExitStack() as stack:
        board = stack.enter_context(observing(Console(stderr=True), os.environ))
        if events is None:
            yield board
            return
        try:
            stream = stack.enter_context(Path(events).open("a", encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot write events to {events}", why=str(error), fix="name another file"
            ) from error
        also = json_lines(stream)

        def both(event: Event) -> None:
            board(event)
            also(event)

        yield both
