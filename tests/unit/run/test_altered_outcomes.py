from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_fakes import make_check, make_task, outcome_of

from harness.ledger.artifacts import ArtifactStore
from harness.outcome import State, Tier
from harness.plan.tasks.task import Task
from harness.run.scheduling.altered_outcomes import altered_outcomes

RESOLVE = make_task(make_check("resolve"))
BUILT = make_task(
    make_check("environment", Tier.BUILD, altered=lambda _measured, _outcome: "core.py was edited"),
    needs=[RESOLVE],
)
LOSS = make_task(make_check("loss", Tier.NUMERICS), needs=[BUILT])
CURVE = make_task(make_check("curve", Tier.CONVERGENCE), needs=[LOSS])
TASKS = {task.key: task for task in (CURVE, LOSS, BUILT, RESOLVE)}


NO_FILES = ArtifactStore(Path("/nonexistent"))


def altered(*tasks: Task) -> dict[str, str]:
    return altered_outcomes(TASKS, {task.key: outcome_of(task) for task in tasks}, NO_FILES)


def test_everything_that_was_measured_in_an_altered_environment_is_named_with_the_reason() -> None:
    found = altered(RESOLVE, BUILT, LOSS, CURVE)
    assert found == {
        BUILT.key: "core.py was edited",
        LOSS.key: "it needs environment, and core.py was edited",
        CURVE.key: "it needs loss, and it needs environment, and core.py was edited",
    }


def test_an_environment_that_was_never_built_was_not_altered() -> None:
    assert altered(RESOLVE, LOSS) == {}


@pytest.mark.parametrize("state", sorted(set(State) - {State.COMPLETED}))
def test_an_outcome_without_measurements_describes_nothing_that_could_be_altered(state: State) -> None:
    without = replace(outcome_of(BUILT), state=state, measurements={})
    assert altered_outcomes(TASKS, {BUILT.key: without}, NO_FILES) == {}


def test_outcomes_of_checks_that_are_not_planned_are_ignored() -> None:
    other = replace(BUILT, key="another")
    assert altered_outcomes(TASKS, {other.key: outcome_of(other)}, NO_FILES) == {}


def test_an_outcome_whose_stored_file_was_altered_is_named_unless_the_file_is_gone(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    ref = store.put(b"torch==2.8.0", "lock.txt")
    outcomes = {RESOLVE.key: outcome_of(RESOLVE, artifacts=(ref,)), LOSS.key: outcome_of(LOSS)}
    assert altered_outcomes(TASKS, outcomes, store) == {}
    file = store.path(ref.digest)
    file.chmod(0o644)
    file.write_bytes(b"torch==2.7.1")
    assert altered_outcomes(TASKS, outcomes, store)[RESOLVE.key] == "its stored file lock.txt was altered"
    file.unlink()
    assert altered_outcomes(TASKS, outcomes, store) == {}
