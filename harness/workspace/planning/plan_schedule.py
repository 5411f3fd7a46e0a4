"""The order of tasks, and the division of cells over the jobs of a GitHub workflow."""

from __future__ import annotations

from typing import Any

from harness.outcome import Status
from harness.plan.cost.shards import github_output, make_shards
from harness.plan.cost.task_order import order_tasks
from harness.workspace.planning.open_plan import PlanContext, cards_by_cell
from harness.workspace.planning.plan_history import PlanHistory


def github_job_lines(
    context: PlanContext, known: PlanHistory, report: dict[str, Any], jobs: int, cards: int
) -> str:
    """Lines for `$GITHUB_OUTPUT`: the cells, divided by expected cost over at most `jobs` jobs."""
    left = {key: task for key, task in context.plan.tasks.items() if key not in known.outcomes}
    touched = None
    if "since" in report:
        touched = {
            cell for task in report["tasks"] if task["effect"] != "unchanged" for cell in task["cells"]
        }
    seconds = {key: known.costs.of_task(task).seconds for key, task in left.items()}
    return github_output(make_shards(context.plan, seconds, jobs, only=touched, cards=cards))


def task_order_rows(context: PlanContext, known: PlanHistory, keys: set[str]) -> list[dict[str, Any]]:
    """Rows for JSON: the tasks of `keys` that still have to run, in the order a run would start them."""
    failed = {key for key, judgement in known.judgements.items() if judgement.status is Status.FAIL}
    turns = order_tasks(
        context.plan,
        seconds={key: known.costs.of_task(task).seconds for key, task in context.plan.tasks.items()},
        failed_before=failed,
        failure_rate=known.failure_rate,
        cards=cards_by_cell(context),
    )
    return [
        {
            "key": turn.key,
            "check": turn.check,
            "failed_before": turn.failed_before,
            "decides": round(turn.decides, 2),
            "card_seconds_to_the_end": round(turn.path, 1),
        }
        for turn in turns
        if turn.key in keys and (turn.key not in known.outcomes or turn.failed_before)
    ]
