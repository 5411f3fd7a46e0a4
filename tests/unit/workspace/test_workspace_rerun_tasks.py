"""Failed tasks run again: the same keys, on the real scheduler and executor, each attempt recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.check import Check
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.settings import load_settings
from harness.workspace.execution.rerun_tasks import partial_plan, rerun_tasks


def judge(measurements, _params):
    return Judgement(status=Status.PASS if measurements["ok"] else Status.FAIL)


def check(name, run):
    return Check(name=name, tier=Tier.STATIC, question="?", facets=(), run=run, judge=judge)


@pytest.fixture
def coin(tmp_path):
    """A check that fails until it has been run often enough; its count stands in a file."""
    file = tmp_path / "count"

    def run(_context):
        count = int(file.read_text()) if file.exists() else 0
        file.write_text(str(count + 1))
        return Measured(measurements={"ok": count >= 2, "count": count}, evidence=Evidence.STATIC)

    return check("coin", run)


@pytest.fixture
def plan(coin):
    never = check("never", lambda _context: pytest.fail("nobody asked for it"))
    needed = check("needed", lambda _context: Measured(measurements={"ok": True}, evidence=Evidence.STATIC))
    tasks = [
        Task(key="n" * 64, check=needed, facets={}, facet_digests={}, code_digest="c"),
        Task(key="c" * 64, check=coin, facets={}, facet_digests={}, code_digest="c", needs=("n" * 64,)),
        Task(key="x" * 64, check=never, facets={}, facet_digests={}, code_digest="c"),
    ]
    entries = [
        PlanEntry(cell_id=cell, check=task.check.name, tier=Tier.STATIC, question="?", key=task.key)
        for cell in ("a", "b")
        for task in tasks
    ]
    by_key = {task.key: task for task in tasks}
    return Plan(profile="default", matrix_digest="m", cells=(), entries=tuple(entries), tasks=by_key)


def test_only_the_named_keys_and_what_they_need_are_part_of_it(plan):
    found = partial_plan(plan, ["c" * 64])
    assert {entry.check for entry in found.entries} == {"coin", "needed"}
    assert set(found.tasks) == {"c" * 64, "n" * 64}
    assert partial_plan(plan, ["unknown"]).entries == ()


def test_each_attempt_is_executed_once_and_recorded(plan, tmp_path):
    settings = load_settings({}, {"NPU_MATRIX_JOBS": "1"}, tmp_path)
    bench = SimpleNamespace(plan=plan, settings=settings)
    with Ledger.open(settings.path("state")) as ledger:
        ledger.record(
            Outcome(
                key="n" * 64,
                check="needed",
                tier=Tier.STATIC,
                state=State.COMPLETED,
                evidence=Evidence.STATIC,
                facets={},
                measurements={"ok": True},
            )
        )
        for _attempt in range(3):
            assert rerun_tasks(bench, ledger, ["c" * 64]) is False
        counts = [outcome.measurements["count"] for outcome in reversed(ledger.history(key="c" * 64))]
        assert counts == [0, 1, 2]
        assert len(ledger.history(key="n" * 64)) == 1, "what it needs is taken from the ledger"
        assert [run.exit_code for run in ledger.runs()] == [0, 0, 0]
