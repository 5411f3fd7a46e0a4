"""`npu-matrix run`: run the planned checks, resume an interrupted run, write the report."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from harness.cli.fetch_option import fetch_option, with_fetch
from harness.cli.selection_options import check_option, only_option
from harness.settings import Settings

#: Option -> the setting and its value with which the option has no effect, and what to say then.
_WITHOUT_EFFECT = {
    "ray_address": (
        "executor",
        "local",
        "--ray-address needs --executor ray: with the executor `local`, all tasks run on this machine",
    ),
    "base_image": (
        "engine",
        "venv",
        "--base-image needs --engine docker or podman: with the engine `venv`, no image is built",
    ),
}


@click.command(
    "run",
    epilog="\b\nExamples:\n  npu-matrix run\n  npu-matrix run --only 'verl-0-9-1*'\n"
    "  npu-matrix run --only CELL --check loss --fresh\n  npu-matrix run --events events.jsonl\n"
    "  npu-matrix run --executor ray --ray-address 10.0.0.1:6379",
)
@only_option("Cells or stacks to run; a,b or repeated. Default: the profile.")
@check_option("Checks to run, with the checks they depend on; a,b or repeated.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Run the named checks again even if they have stored outcomes, and failed checks that they depend"
    " on; without --check, all.",
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
@click.option("--engine", help="What builds cells: venv, docker or podman; or found.")
@click.option("--base-image", help="Base image of container cells. Default: the image that the lock names.")
@click.option("--reports", help="Folder for the report.")
@fetch_option
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
    from harness.cli.run_execution import execute_plan, record_reference_sets
    from harness.cli.stated_exit import StatedExit
    from harness.report.publish.publish import ensure_writable
    from harness.run.executors.executor import LocalExecutor
    from harness.workspace.execution.run_setup import exclusive_run, local_site, ray_cluster
    from harness.workspace.planning.open_plan import open_plan
    from harness.workspace.planning.plan_selection import split_names
    from harness.workspace.planning.upstream_mirrors import fetch_for_cells

    flags = {
        name: options[name] for name in ("jobs", "reports", "engine", "base_image", "executor", "ray_address")
    }
    flags["wait"] = None if options["wait"] is None else str(options["wait"]).lower()
    settings = with_fetch(settings.overridden(flags), options["fetch"])
    for name, (setting, value, why) in _WITHOUT_EFFECT.items():
        if options[name] is not None and settings[setting] == value:
            raise click.UsageError(why)
    with contextlib.ExitStack() as stack:
        cluster = ray_cluster(settings)
        if cluster is not None:
            stack.callback(cluster.close)
        context = open_plan(settings, only=only, checks=checks, nodes=cluster.nodes if cluster else ())
        ensure_writable(settings.path("reports"))
        fetch_for_cells(settings, context.matrix, [cell.axes for cell in context.plan.cells])
        stopped = stack.enter_context(exclusive_run(settings))
        site = local_site(settings, keep=options["keep_work"], cards=context.host.usable_chips)
        executor = cluster or LocalExecutor(site, settings.jobs)
        stack.callback(executor.close)
        all_planned = {task.check.name for task in context.plan.tasks.values()}
        rerun = (set(split_names(checks)) or all_planned) if options["fresh"] else frozenset()
        result, code = execute_plan(
            context,
            executor,
            stopped,
            rerun=rerun,
            keep_going=options["keep_going"],
            events=options["events"],
        )
        if options["record_reference"] is None or result.interrupted:
            return code
        interrupted = record_reference_sets(context, result, options["record_reference"], stopped)
        return StatedExit(interrupted, ("the recording was interrupted",)) if interrupted else code
