"""What is blocked in a cell, and by which task."""

from __future__ import annotations

import pytest

from harness.check import Check
from harness.ledger.plan_record import PlanEntry
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.cell_decisions import STOPPING, Phase, decide_cell
from harness.plan.tasks.task import Task


def make(name: str, tier: Tier, *needs: str, stops: bool = True) -> Task:
    check = Check(
        name=name,
        tier=tier,
        question="?",
        facets=(),
        run=lambda _context: Measured(measurements={}, evidence=Evidence.STATIC),
        judge=lambda _measurements, _params: Judgement(status=Status.PASS),
        needs=needs,
        stops=stops,
    )
    return Task(key=name, check=check, facets={}, facet_digests={}, code_digest="c", needs=needs)


RESOLVE = make("resolve", Tier.STATIC, stops=False)
TASKS = (RESOLVE, make("environment", Tier.BUILD, "resolve"), make("loss", Tier.NUMERICS))


def decided(
    statuses: dict[str, Status], *tasks: Task, keep_going: bool = False
) -> dict[str, tuple[Phase, str]]:
    judgements = {key: Judgement(status=status) for key, status in statuses.items()}
    entries = [
        PlanEntry(cell_id="cell", check=task.key, tier=task.check.tier, question="?", key=task.key)
        for task in tasks
    ]
    found = decide_cell(entries, judgements.get, {task.key: task for task in tasks}, keep_going=keep_going)
    return {one.entry.check: (one.phase, one.blocked_by) for one in found}


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PASS])
def test_a_need_that_did_not_pass_blocks_also_the_dearer_tiers(status: Status) -> None:
    found = decided({"resolve": status}, *TASKS)
    assert found["environment"] == found["loss"] == (Phase.BLOCKED, "resolve")
    found = decided({"resolve": status}, *TASKS, keep_going=True)
    assert found["environment"] == (Phase.BLOCKED, "resolve")
    assert found["loss"] == (Phase.REQUIRED, "")


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("stops", [False, True])
def test_only_stopping_statuses_of_checks_that_stop_block_the_dearer_tiers(
    status: Status, stops: bool
) -> None:
    lint = make("lint", Tier.STATIC, stops=stops)
    found = decided({"lint": status}, lint, make("loss", Tier.NUMERICS))
    blocked = stops and status in STOPPING
    assert found["loss"] == ((Phase.BLOCKED, "lint") if blocked else (Phase.REQUIRED, ""))


def test_an_entry_without_a_task_blocks_but_no_outcome_does() -> None:
    found = decided({}, make("environment", Tier.BUILD, "resolve"))
    assert found["environment"] == (Phase.BLOCKED, "")
