"""Finds stored outcomes that no longer describe what exists on this host: an environment, a stored file."""

from __future__ import annotations

from collections.abc import Mapping

from harness.check import why_altered
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import Outcome, State
from harness.plan.tasks.task import Task


def altered_outcomes(
    tasks: Mapping[str, Task], outcomes: Mapping[str, Outcome], artifacts: ArtifactStore
) -> dict[str, str]:
    """Key -> reason, for outcomes that describe something that was altered since, and those made from them.

    A task that timed out or failed has no measurements, so its outcome describes nothing. This reads the
    metadata of all files of the environments that the outcomes describe, and the artifacts.
    """
    found = {
        key: reason
        for key, outcome in outcomes.items()
        if key in tasks
        and outcome.state is State.COMPLETED
        and (reason := _altered_artifact(outcome, artifacts) or why_altered(tasks[key].check, outcome))
    }
    dependents: dict[str, list[str]] = {}
    for key in outcomes.keys() & tasks.keys():
        for need in tasks[key].needs:
            dependents.setdefault(need, []).append(key)
    pending = list(found)
    while pending:
        altered = pending.pop()
        for key in dependents.get(altered, ()):
            if key not in found:
                found[key] = f"it needs {tasks[altered].check.name}, and {found[altered]}"
                pending.append(key)
    return found


def _altered_artifact(outcome: Outcome, artifacts: ArtifactStore) -> str:
    name = next((ref.name for ref in outcome.artifacts if artifacts.is_altered(ref)), "")
    return f"its stored file {name} was altered" if name else ""
