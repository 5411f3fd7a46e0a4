"""`npu-matrix plan`: the tasks of the selected cells, the impact of a change, covering sets of cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.selection_options import check_option, only_option
from harness.serialisation import as_object, dumps
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.plan_record import PlanEntry
    from harness.plan.tasks.task import Plan
    from harness.workspace.planning.plan_estimates import PlanEstimates
    from harness.workspace.planning.plan_history import PlanHistory
    from harness.workspace.planning.plan_schedule import ScheduledTask


@click.command(
    "plan",
    epilog="\b\nExamples:\n  npu-matrix plan\n  npu-matrix plan --only 'gspo-*' --check lint\n"
    "  npu-matrix plan --changed-since origin/main\n"
    '  npu-matrix plan --changed-since origin/main --github 8 >> "$GITHUB_OUTPUT"\n'
    "  npu-matrix --profile releases plan --strength 2 --budget 8h\n"
    "  npu-matrix plan --json | jq '.tasks | length'",
)
@only_option("Cells or stacks to plan; a,b or repeated. Default: the profile.")
@check_option("Checks to plan, with the checks they depend on; a,b or repeated.")
@click.option(
    "--changed-since", metavar="REF", help="Show the tasks whose key differs from this git revision."
)
@click.option(
    "--strength",
    type=click.IntRange(1, 6),
    help="Choose a covering set: every feasible combination of N axis values is in one of its cells.",
)
@click.option(
    "--budget",
    metavar="SPAN",
    help="With --strength: only as many cells as fit into this time, for example 45min, 8h or 2d.",
)
@click.option(
    "--keep",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --strength: keep the cells of this earlier `plan --json`. Default: of the latest run.",
)
@click.option(
    "--order", "in_order", is_flag=True, help="Show the tasks in the order in which a run starts them."
)
@click.option(
    "--github",
    type=click.IntRange(1, 256),
    metavar="JOBS",
    help="Print lines for $GITHUB_OUTPUT: the cells, divided by cost over at most JOBS jobs.",
)
@click.option(
    "--cards",
    type=click.IntRange(1),
    help="With --github: only cells on NPUs, for runners with this number of cards.",
)
@click.option(
    "--code-impact",
    is_flag=True,
    help="Show how many checks a change of each package of npu-matrix renews.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON (schema npu-matrix.plan, .impact, .cover or .code-impact).",
)
@click.pass_obj
def command(
    settings: Settings, /, only: tuple[str, ...], checks: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Show the tasks of the selected cells: which have a stored outcome, and what the others cost.

    Nothing is run. A task marked * has a stored outcome that a run reuses.
    """
    from harness.workspace.planning.plan_estimates import estimate_plan
    from harness.workspace.planning.plan_history import open_plan_with_history
    from harness.workspace.planning.plan_schedule import PlanReport, github_job_lines, schedule_tasks
    from harness.workspace.planning.revision_comparison import compare_with_revision

    if options["code_impact"]:
        _show_code_impact(checks, as_json=as_json)
        return
    if options["changed_since"] == "":
        raise click.UsageError("--changed-since needs a git revision")
    if options["changed_since"] and options["strength"]:
        raise click.UsageError("use either --changed-since or --strength")
    if not options["strength"] and (options["budget"] or options["keep"]):
        raise click.UsageError("--budget and --keep need --strength")
    if options["cards"] and not options["github"]:
        raise click.UsageError("--cards needs --github")
    if options["strength"]:
        # It imports numpy, which takes longer than a plan without covering set.
        from harness.workspace.planning.covering_plan import choose_covering_cells

        report = choose_covering_cells(
            settings, only, checks, options["strength"], options["budget"], options["keep"]
        )
    elif options["changed_since"]:
        context, known = open_plan_with_history(settings, only=only, checks=checks)
        report = compare_with_revision(context, known, options["changed_since"], only, checks)
    else:
        # With --cards, the jobs run on hosts with NPUs, whatever this host has.
        context, known = open_plan_with_history(
            settings, only=only, checks=checks, elsewhere=bool(options["cards"])
        )
        estimates = estimate_plan(context.plan, known)
        record = as_object(context.plan.record())
        report = PlanReport(
            context=context,
            known=known,
            json={**record, "known": sorted(known.outcomes), "estimates": estimates},
            lines=_lines(context.plan, known, estimates),
        )
    if options["github"]:
        click.echo(github_job_lines(report, options["github"], options["cards"] or 0))
        return
    if options["in_order"]:
        scheduled = schedule_tasks(report)
        report.json["order"] = [task.key for task in scheduled]
        report.lines.extend(["", "order of execution:"])
        report.lines.extend(_scheduled_line(number, task) for number, task in enumerate(scheduled, 1))
    if as_json:
        click.echo(dumps(report.json, indent=2))
        return
    for line in report.lines:
        click.echo(line)


def _show_code_impact(names: tuple[str, ...], *, as_json: bool) -> None:
    from harness.plan.keys.code_impact import code_impact
    from harness.workspace.planning.plan_selection import select_checks

    checks = select_checks(names)
    rows = code_impact(checks)
    if as_json:
        schema = {"name": "npu-matrix.code-impact", "version": 1}
        click.echo(
            dumps({"schema": schema, "checks": [check.name for check in checks], "packages": rows}, indent=2)
        )
        return
    click.echo(f"checks of {len(checks)} that are run again after a change in a package of npu-matrix")
    click.echo(f"{'':<14} {'':>8} {'':>12} {'in no':>6}  {'one definition':>16}  {'one module':>14}")
    click.echo(
        f"{'package':<14} {'modules':>8} {'definitions':>12} {'key':>6}  {'median':>9} {'most':>6}  "
        f"{'median':>7} {'most':>6}"
    )
    for row in rows:
        click.echo(
            f"{row.package:<14} {row.modules:>8} {row.definitions:>12} {row.in_no_key:>6}  "
            f"{row.definition_median:>9g} {row.definition_most:>6}  "
            f"{row.module_median:>7g} {row.module_most:>6}"
        )


def _lines(plan: Plan, known: PlanHistory, estimates: PlanEstimates) -> list[str]:
    from harness.workspace.planning.plan_estimates import work_text

    by_cell: dict[str, list[PlanEntry]] = {}
    for entry in plan.entries:
        by_cell.setdefault(entry.cell_id, []).append(entry)
    width = max(len(cell) for cell in by_cell)
    lines = []
    for cell_id, entries in by_cell.items():
        planned = [_mark(entry.check, entry.key in known.outcomes) for entry in entries if entry.key]
        left_out = len(entries) - len(planned)
        cost = str(estimates.cells[cell_id])
        lines.append(
            f"{cell_id:<{width}}  {' '.join(planned)}{'  [' + cost + ']' if cost else ''}"
            f"{f'  ({left_out} not run)' if left_out else ''}"
        )
    reasons = Counter(entry.skip.reason for entry in plan.entries if entry.skip)
    lines.extend(f"not run: {count} x {reason}" for reason, count in reasons.most_common())
    todo = [task for key, task in plan.tasks.items() if key not in known.outcomes]
    planned_checks = sum(bool(entry.key) for entry in plan.entries)
    lines.append(
        f"{len(by_cell)} cells, {planned_checks} checks, {len(plan.tasks)} distinct tasks, "
        f"{len(todo)} to run ({work_text(known, todo)} of work); * = stored outcome is reused"
    )
    lines.extend(estimates.basis_lines())
    lines.extend(f"note: {notice}" for notice in plan.notices)
    if known.outcomes:
        lines.append(f"note: {known.index_review}")
    return lines


def _mark(check: str, is_known: bool) -> str:
    return f"{check}*" if is_known else check


def _scheduled_line(number: int, task: ScheduledTask) -> str:
    failed = ", failed last time" if task.failed_before else ""
    return (
        f"{number:>4}  {task.key[:12]}  {task.check:<12} decides {task.decides:g}, "
        f"{task.card_seconds_to_the_end:g} card-seconds to the end{failed}"
    )
