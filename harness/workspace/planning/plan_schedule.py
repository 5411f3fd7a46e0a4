"""The order of tasks, and the division of cells over the jobs of a GitHub workflow."""

from __future__ import annotations

from dataclasses import dataclass

from harness.outcome import Status
from harness.plan.cost.shards import github_output, make_shards
from harness.plan.cost.task_order import order_tasks
from harness.plan.tasks.task import Plan
from harness.workspace.planning.open_plan import PlanContext, cards_by_cell
from harness.workspace.planning.plan_history import PlanHistory


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """A plan with its history, as `npu-matrix plan` prints it: as JSON and as lines of text.

    has_tasks: False for a covering set without cells. changed_cells: the cells with tasks that a change
    affects, if the plan is compared with an earlier revision.
    """

    context: PlanContext
    known: PlanHistory
    json: dict[str, object]
    lines: list[str]
    has_tasks: bool = True
    changed_cells: frozenset[str] | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduledTask:
    """A task in the order in which a run starts them.

    decides: expected number of more expensive entries that its failure skips. card_seconds_to_the_end: the
    longest chain of dependent tasks that starts with it.
    """

    key: str
    check: str
    failed_before: bool
    decides: float
    card_seconds_to_the_end: float


def github_job_lines(report: PlanReport, jobs: int, cards: int) -> str:
    """Lines for `$GITHUB_OUTPUT`: the cells, divided by expected cost over at most `jobs` jobs.

    cards: see `make_shards`.
    """
    seconds = seconds_to_run(report.context.plan, report.known)
    shards = make_shards(report.context.plan, seconds, jobs, only=report.changed_cells, cards=cards)
    return github_output(shards)


def seconds_to_run(plan: Plan, known: PlanHistory) -> dict[str, float]:
    """Key -> expected cost of each task that has no stored outcome."""
    return {
        key: known.costs.of_task(task).seconds
        for key, task in plan.tasks.items()
        if key not in known.outcomes
    }


def schedule_tasks(report: PlanReport) -> list[ScheduledTask]:
    """The tasks that still have to run, in the order in which a run starts them."""
    if not report.has_tasks:
        return []
    context, known = report.context, report.known
    failed = {key for key, judgement in known.judgements.items() if judgement.status is Status.FAIL}
    ordered = order_tasks(
        context.plan,
        seconds={key: known.costs.of_task(task).seconds for key, task in context.plan.tasks.items()},
        failed_before=failed,
        failure_rate=known.failure_rate,
        cards=cards_by_cell(context),
    )
    return [
        ScheduledTask(
            key=task.key,
            check=task.check,
            failed_before=task.failed_before,
            decides=round(task.decides, 2),
            card_seconds_to_the_end=round(task.path, 1),
        )
        for task in ordered
        if task.key not in known.outcomes or task.failed_before
    ]
