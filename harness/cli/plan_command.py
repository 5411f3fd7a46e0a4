"""`npu-matrix plan`: which tasks answer which cells, what a change touches, which cells to choose."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.serialisation import as_object, dumps
from harness.settings import Settings
from harness.workspace.planning.plan_estimates import cost_text, estimate_basis, estimate_plan, work_text
from harness.workspace.planning.plan_history import PlanHistory, open_plan_with_history
from harness.workspace.planning.plan_schedule import github_job_lines, task_order_rows

if TYPE_CHECKING:
    from harness.plan.tasks.task import Plan


@click.command(
    "plan",
    epilog="\b\nExamples:\n  npu-matrix plan\n  npu-matrix plan --only 'gspo-*' --check lint\n"
    "  npu-matrix plan --changed-since origin/main\n"
    '  npu-matrix plan --changed-since origin/main --github 8 >> "$GITHUB_OUTPUT"\n'
    "  npu-matrix --profile releases plan --strength 2 --budget 8h\n"
    "  npu-matrix plan --json | jq '.tasks | length'",
)
@click.option("--only", multiple=True, metavar="GLOB", help="Cells to plan; a,b or repeated.")
@click.option(
    "--check", "checks", multiple=True, help="Checks to plan, with what they need; a,b or repeated."
)
@click.option("--changed-since", metavar="REF", help="Show the tasks whose key differs from that revision.")
@click.option(
    "--strength", type=click.IntRange(1, 6), help="Choose cells that hold every feasible tuple of N values."
)
@click.option("--budget", metavar="SPAN", help="With --strength: what fits into 45min, 8h, 2d of work.")
@click.option(
    "--keep",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --strength: an earlier `plan --json`; its cells stay. Default: those of the last run.",
)
@click.option("--order", "in_order", is_flag=True, help="Show the tasks in the order that tells most first.")
@click.option(
    "--github",
    type=click.IntRange(1, 256),
    metavar="JOBS",
    help="Print $GITHUB_OUTPUT lines: the cells dealt out by cost to at most so many jobs.",
)
@click.option(
    "--cards",
    type=click.IntRange(1),
    help="With --github: only cells on NPUs, for runners with so many cards.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema npu-matrix.plan, .impact, .cover).")
@click.pass_obj
def command(
    settings: Settings, /, only: tuple[str, ...], checks: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Show which tasks answer which cells, which are known already, and what the rest costs."""
    if options["changed_since"] == "":
        raise click.UsageError("--changed-since names no revision: the plan would not be narrowed")
    if options["changed_since"] and options["strength"]:
        raise click.UsageError("--changed-since and --strength answer different questions: ask one")
    if not options["strength"] and (options["budget"] or options["keep"]):
        raise click.UsageError("--budget and --keep go with --strength")
    if options["cards"] and not options["github"]:
        raise click.UsageError("--cards goes with --github")
    if options["strength"]:
        from harness.workspace.planning.covering_plan import choose_covering_cells

        context, known, report, lines = choose_covering_cells(
            settings, only, checks, options["strength"], options["budget"], options["keep"]
        )
    elif options["changed_since"]:
        from harness.workspace.planning.revision_comparison import compare_with_revision

        context, known = open_plan_with_history(settings, only=only, checks=checks)
        report, lines = compare_with_revision(context, known, options["changed_since"], only, checks)
    else:
        context, known = open_plan_with_history(settings, only=only, checks=checks)
        costs = estimate_plan(context.plan, known)
        report = {**as_object(context.plan.record()), "known": sorted(known.outcomes), "estimates": costs}
        lines = _lines(context.plan, known, costs)
    if options["github"]:
        click.echo(github_job_lines(context, known, report, options["github"], options["cards"] or 0))
        return
    if options["in_order"]:
        turns = task_order_rows(context, known, {as_object(task)["key"] for task in report["tasks"]})
        report["order"] = [turn["key"] for turn in turns]
        lines += ["", "in this order:"] + [_turn_line(number, turn) for number, turn in enumerate(turns, 1)]
    if as_json:
        click.echo(dumps(report, indent=2))
        return
    for line in lines:
        click.echo(line)


def _lines(plan: Plan, known: PlanHistory, costs: dict[str, Any]) -> list[str]:
    by_cell: dict[str, list[Any]] = {}
    for entry in plan.entries:
        by_cell.setdefault(entry.cell_id, []).append(entry)
    width = max(len(cell) for cell in by_cell)
    lines = []
    for cell_id, entries in by_cell.items():
        planned = [_mark(entry.check, entry.key in known.outcomes) for entry in entries if entry.key]
        left_out = Counter(entry.skip.reason for entry in entries if entry.skip)
        tail = "; ".join(f"{count} not run: {reason}" for reason, count in left_out.items())
        cost = cost_text(costs["cells"][cell_id])
        lines.append(
            f"{cell_id:<{width}}  {' '.join(planned)}{'  [' + cost + ']' if cost else ''}"
            f"{'  (' + tail + ')' if tail else ''}"
        )
    todo = [task for key, task in plan.tasks.items() if key not in known.outcomes]
    wanted = sum(bool(entry.key) for entry in plan.entries)
    lines.append(
        f"{len(by_cell)} cells, {wanted} answers wanted, {len(plan.tasks)} distinct tasks, "
        f"{len(todo)} to run ({work_text(known, todo)} of work); * = known already"
    )
    lines.extend(estimate_basis(costs))
    lines.extend(f"note: {notice}" for notice in plan.notices)
    return lines


def _mark(check: str, is_known: bool) -> str:
    return f"{check}*" if is_known else check


def _turn_line(number: int, turn: dict[str, Any]) -> str:
    failed = ", failed last time" if turn["failed_before"] else ""
    return (
        f"{number:>4}  {turn['key'][:12]}  {turn['check']:<12} decides {turn['decides']:g}, "
        f"{turn['card_seconds_to_the_end']:g} card-seconds to the end{failed}"
    )
