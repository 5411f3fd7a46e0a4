"""Stored outcomes whose inputs have a new answer: the question is the same, what it was built on is not."""

from __future__ import annotations

from collections.abc import Mapping

from harness.outcome import Outcome
from harness.plan.tasks.task import Task


def changed_input(task: Task, outcome: Outcome, outcomes: Mapping[str, Outcome]) -> str:
    """Why a stored outcome of the task is not built on what `outcomes` (by key) holds now, or "".

    A need without an outcome says nothing, nor does an outcome that recorded no inputs.
    """
    for key in task.needs:
        need = outcomes.get(key)
        if need is not None and outcome.inputs.get(need.check, need.answer) != need.answer:
            return f"{need.check} has a new answer since"
    return ""


def outdated_outcomes(tasks: Mapping[str, Task], outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Key -> why its outcome is to be made again, of all that were built on an earlier answer of a need.

    What is built on one of those is not among them: whether it has to be made again is known when that has
    its new answer.
    """
    found = {
        key: changed_input(tasks[key], outcome, outcomes) for key, outcome in outcomes.items() if key in tasks
    }
    return {key: reason for key, reason in found.items() if reason}
