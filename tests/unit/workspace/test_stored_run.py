from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from make_outcome import make_outcome

from harness.check import Check
from harness.errors import EXIT_INCOMPLETE, EXIT_OK
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.settings import Settings, load_settings
from harness.workspace.results import stored_run
from harness.workspace.results.stored_run import StoredRun, exit_code_today, open_run

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def edits() -> list[str]:
    """How the environment of the run was altered."""
    return []


@pytest.fixture
def plan(edits: list[str]) -> Plan:
    def check(name: str, tier: Tier, needs: tuple[str, ...] = ()) -> Check:
        return Check(
            name=name,
            tier=tier,
            question="?",
            facets=(),
            run=lambda _context: Measured(measurements={}, evidence=Evidence.CPU),
            judge=lambda _measured, _params: Judgement(status=Status.PASS),
            needs=needs,
            altered=(lambda _measured, _outcome: "".join(edits)) if name == "environment" else None,
        )

    checks = check("environment", Tier.BUILD), check("loss", Tier.NUMERICS, ("environment",))
    needs = {"environment": (), "loss": ("environment" * 6,)}
    tasks = [
        Task(key=one.name * 6, check=one, facets={}, facet_digests={}, code_digest="c", needs=needs[one.name])
        for one in checks
    ]
    entries = [
        PlanEntry(cell_id="cell", check=task.check.name, tier=task.check.tier, question="?", key=task.key)
        for task in tasks
    ]
    by_key = {task.key: task for task in tasks}
    return Plan(profile="default", matrix_digest="m", cells=(), entries=tuple(entries), tasks=by_key)


@pytest.fixture
def settings(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Settings:
    checks = [task.check for task in plan.tasks.values()]
    monkeypatch.setattr(stored_run, "all_checks", lambda: checks)
    return load_settings({"state": str(tmp_path)}, {}, REPOSITORY)


@pytest.fixture
def ledger(settings: Settings, plan: Plan) -> Iterator[Ledger]:
    """A finished run whose checks passed."""
    with Ledger.open(settings.path("state")) as opened:
        run_id = opened.begin_run(plan.record(), ["run"], {}, now=1.0)
        for task in plan.tasks.values():
            opened.record(
                make_outcome(
                    task.key, task.check.name, tier=task.check.tier, evidence=Evidence.CPU, run_id=run_id
                )
            )
        opened.finish_run(run_id, EXIT_OK)
        yield opened


def statuses(stored: StoredRun) -> dict[str, Status]:
    return {verdict.check: verdict.status for verdict in stored.verdicts}


def test_a_run_whose_environment_was_altered_is_no_longer_green(
    settings: Settings, ledger: Ledger, edits: list[str]
) -> None:
    stored = open_run(settings, ledger, None)
    assert (statuses(stored)["loss"], exit_code_today(stored)) == (Status.PASS, EXIT_OK)
    edits.append("torch/__init__.py was edited")
    stored = open_run(settings, ledger, None)
    assert statuses(stored) == {"environment": Status.STALE, "loss": Status.STALE}
    assert exit_code_today(stored) == EXIT_INCOMPLETE
    assert all("torch/__init__.py was edited" in verdict.reasons[0] for verdict in stored.verdicts)
    assert {verdict.remedies for verdict in stored.verdicts} == {("Run the check again.",)}
