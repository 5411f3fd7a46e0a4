"""`npu-matrix gate`: whether a change may be merged, compared with its base."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.selection_options import check_option, only_option
from harness.errors import (
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_SELECTED,
    EXIT_OK,
    EXIT_UNEXPECTED,
    InputError,
    Location,
)
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.store import Ledger
    from harness.plan.change.revision import Revision
    from harness.verdict.gate.gate import GateInputs
    from harness.verdict.gate.gate_report import GateReport
    from harness.workspace.results.gate_comparison import GateOptions


@click.command(
    "gate",
    epilog="\b\nExamples:\n  npu-matrix run && npu-matrix gate --base origin/main\n"
    "  npu-matrix gate --base 20261120T080000-1a2b3c4d --json\n"
    "  npu-matrix gate --base origin/main --run --run-base --reruns 6\n"
    "  npu-matrix gate --base main --merge shard-1/ --merge shard-2/ --github\n"
    "  npu-matrix gate --base previous/ledger.sqlite3 --comment comment.md --sarif gate.sarif",
)
@click.option(
    "--base",
    required=True,
    help="What to compare with: a git revision, a run of this ledger, or another ledger (file or folder).",
)
@only_option("Cells or stacks to judge; a,b or repeated. Default: the profile.")
@check_option("Checks to judge, with the checks they depend on.")
@click.option(
    "--merge",
    "shards",
    multiple=True,
    metavar="LEDGER",
    help="Merge the outcomes of this ledger first, for example of a CI shard; may be repeated.",
)
@click.option(
    "--run",
    "run_here",
    is_flag=True,
    help="First run the selected tasks of this checkout that have no outcome, as `npu-matrix run` does; with "
    "--impacted, only those of cells that differ from the base.",
)
@click.option(
    "--run-base",
    is_flag=True,
    help="Run those checks of the base that fail here and have no outcome there. This executes the base.",
)
@click.option(
    "--reruns",
    type=click.IntRange(0, 20),
    default=0,
    metavar="N",
    help="Run new failures up to N more times with unchanged inputs, to detect flaky checks.",
)
@click.option(
    "--impacted", is_flag=True, help="Do not require outcomes for tasks whose key is the same on the base."
)
@click.option(
    "--awaiting",
    multiple=True,
    metavar="WHAT",
    help="Do not require outcomes that another job provides: CELL:CHECK or CHECK (globs), npu for all tasks "
    "that need a device which this host does not have, or unselected for all that --only and --check leave "
    "out. The report names them first.",
)
@click.option(
    "--accept-removed",
    multiple=True,
    metavar="WHAT",
    help="Let the change remove these checks of cells, or verify them with weaker evidence; written as for "
    "--awaiting.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.gate).")
@click.option("--github", is_flag=True, help="Also print GitHub annotations and write the job summary.")
@click.option(
    "--comment",
    type=click.Path(dir_okay=False),
    help="Write the text of a pull request comment to this file.",
)
@click.option("--sarif", type=click.Path(dir_okay=False), help="Write SARIF to this file.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write JUnit XML to this file.")
@click.option(
    "--code-quality",
    type=click.Path(dir_okay=False),
    help="Write a code quality report of GitLab to this file.",
)
@click.pass_context
def command(ctx: click.Context, /, base: str, **options: Any) -> int:
    """Compare the verdicts of this checkout with its base, and decide whether the change may be merged.

    New failures block the change. Expected failures, failures that the base has too, and failures of tasks
    whose key is the same on the base do not. An expected failure that passes blocks until its expectation is
    removed.

    A task whose key or expected failure differs from the base must have an outcome, even if --only and
    --check do not select it and even if this host cannot run it; otherwise the exit code is 4. A failure
    whose base was never run is unknown, which blocks too. Checks that the change no longer plans, or moves to
    a device with weaker evidence, block until --accept-removed names them. The first lines of the report say
    what was compared and what was not.

    The package index is asked whether it has replaced archives that outcomes rest on. If the key of such an
    outcome differs from the base, it is stale; the others are counted.

    Without --run, the gate does not run this checkout: execute `npu-matrix run` first, on any number of
    machines, and merge their ledgers. --reruns runs new failures again; a failure is excused as flaky only if
    its history shows flaky failures. With --run-base the base is run where a failure cannot be compared. All
    three fetch missing commits of upstream repositories from the addresses that the base names, unless the
    setting `fetch` is false.

    Warning: `--base REV` executes the planning code of that revision, and `--run-base` also its checks. Pass
    only revisions you trust.
    """
    from harness.verdict.gate.gate_ci_reports import as_code_quality, as_junit
    from harness.verdict.gate.gate_format import FORMATS
    from harness.workspace.open_ledger import open_ledger
    from harness.workspace.results.base_runners import runners_of_base
    from harness.workspace.results.gate_base import foreign_ledger
    from harness.workspace.results.gate_comparison import GateOptions

    settings: Settings = ctx.obj
    if options["run_here"]:
        if options["as_json"]:
            raise click.UsageError("--run prints its progress, so it cannot be used with --json")
        code = _run_here(ctx, base, options["only"], options["checks"], impacted=options["impacted"])
        if code not in {EXIT_OK, EXIT_UNEXPECTED, EXIT_NOTHING_SELECTED, EXIT_INCOMPLETE}:
            return code
    wanted = GateOptions(
        base=base,
        only=options["only"],
        checks=options["checks"],
        impacted_only=options["impacted"],
        awaiting=_names(options["awaiting"]),
        accept_removed=_names(options["accept_removed"]),
    )
    shards = [foreign_ledger(settings, Path(shard)) for shard in options["shards"]]
    with open_ledger(settings, partial(runners_of_base, settings, base)) as ledger:
        report = _judged(
            settings, ledger, wanted, shards, run_base=options["run_base"], reruns=options["reruns"]
        )
    if report is None:
        return EXIT_INTERRUPTED
    _print(report, as_json=options["as_json"], github=options["github"])
    formats = {**FORMATS, "junit": as_junit, "code_quality": as_code_quality}
    for name in ("comment", "sarif", "junit", "code_quality"):
        if options[name]:
            _write(Path(options[name]), formats[name](report))
    return report.exit_code


def _run_here(
    ctx: click.Context, base: str, only: tuple[str, ...], checks: tuple[str, ...], *, impacted: bool
) -> int:
    """Run this checkout, with upstream sources from the addresses of the base; returns the exit code."""
    from harness.cli.run_command import command as run
    from harness.workspace.planning.base_addresses import fetch_for_change
    from harness.workspace.planning.impacted_cells import impacted_cells
    from harness.workspace.planning.open_plan import open_plan

    if impacted:
        cells = impacted_cells(ctx.obj, base, only, checks)
        if not cells:
            return EXIT_OK
        only = tuple(cell.id for cell in cells)
    else:
        cells = open_plan(ctx.obj, only=only, checks=checks).plan.cells
    fetch_for_change(ctx.obj, base, [cell.axes for cell in cells])
    return int(ctx.invoke(run, only=only, checks=checks, fetch=False))


def _judged(
    settings: Settings,
    ledger: Ledger,
    wanted: GateOptions,
    shards: Sequence[Path],
    *,
    run_base: bool,
    reruns: int,
) -> GateReport | None:
    """Merge the shards, judge, and run what can still decide something; None if the user interrupted it."""
    from harness.cli.ledger_command import merge_lines
    from harness.verdict.gate.gate import judge_gate, undecided, unknown_on_base
    from harness.workspace.execution import base_run
    from harness.workspace.execution.rerun_tasks import rerun_tasks
    from harness.workspace.planning.base_addresses import fetch_for_change
    from harness.workspace.results.foreign_secrets import ForeignSecrets
    from harness.workspace.results.gate_comparison import gate_inputs, open_gate_plan

    screen = ForeignSecrets()
    for shard in shards:
        merged = ledger.merge(shard, screen)
        if merged.claimed or not merged.complete:
            click.echo("\n".join(merge_lines(str(shard), merged)), err=True)
    planned = open_gate_plan(settings, ledger, wanted)
    if run_base or reruns:
        fetch_for_change(settings, wanted.base, [cell.axes for cell in planned.context.plan.cells])
    report = judge_gate(inputs := gate_inputs(planned, ledger, wanted))
    if run_base and (names := unknown_on_base(report, inputs)):
        click.echo(f"running the base for {len(names)} failures without an outcome there", err=True)
        if base_run.run_base(settings, ledger, _revision(settings, inputs, wanted.base), names, screen):
            return None
        report = judge_gate(inputs := gate_inputs(planned, ledger, wanted))
    for number in range(1, reruns + 1):
        # Tasks of other hosts cannot be run again here.
        keys = [key for key in undecided(report, inputs.flakes) if key in planned.own_keys]
        if not keys:
            break
        click.echo(f"attempt {number} of {reruns} more on {len(keys)} failed tasks", err=True)
        if rerun_tasks(planned.context, ledger, keys):
            return None
        report = judge_gate(inputs := gate_inputs(planned, ledger, wanted))
    return report


def _revision(settings: Settings, inputs: GateInputs, base: str) -> Revision:
    """The revision to run as the base; InputError if the base is a run or another ledger."""
    from harness.plan.change.revision import resolve_revision

    if not inputs.scope.commit:
        raise InputError(
            f"--run-base needs a git revision, and {base} is a run or a ledger",
            fix="name the branch or commit of the base, or leave --run-base out",
        )
    return resolve_revision(settings.root, inputs.scope.commit)


def _names(words: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns, also several separated by commas; none for an empty text, as from an empty variable of CI."""
    return tuple(part.strip() for word in words for part in word.split(",") if part.strip())


def _print(report: GateReport, *, as_json: bool, github: bool) -> None:
    from harness.verdict.gate.gate_format import FORMATS

    click.echo(FORMATS["json" if as_json else "text"](report), nl=False)
    if github:
        if not as_json:
            click.echo(FORMATS["github"](report), nl=False)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            _write(Path(summary), FORMATS["markdown"](report), append=True)


def _write(file: Path, text: str, *, append: bool = False) -> None:
    try:
        with file.open("a" if append else "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(
            "cannot write here", where=Location(file), why=error.strerror or str(error)
        ) from error
