"""The gate over 10,000 outcomes, half of them the base's: processor time from an open ledger to all formats.

The rival reads the same outcomes from the ledger and does nothing with them.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, timed
from harness.check import Check
from harness.digest import digest_json
from harness.ledger.plan_record import CellFacts, PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.verdict.gate.gate import GateInputs, judge_gate
from harness.verdict.gate.gate_format import FORMATS
from harness.verdict.ledger_outcomes import flake_decisions, read_attempts, verdicts_from_ledger

OUTCOMES = 10_000
CHECKS_PER_CELL = 5


def judge(measurements: object, _params: object) -> Judgement:
    good = bool(measurements["good"])  # type: ignore[index]
    return Judgement(status=Status.PASS if good else Status.FAIL, reasons=() if good else ("loss differs",))


def run(_context: object) -> Measured:
    return Measured(measurements={"good": True}, evidence=Evidence.STATIC)


def check(name: str) -> Check:
    return Check(
        name=name,
        tier=Tier.NUMERICS,
        question="?",
        facets=(),
        run=run,
        judge=judge,
    )


def plan(count: int, seed: str) -> Plan:
    checks = [check(f"check-{number}") for number in range(CHECKS_PER_CELL)]
    cells = [f"cell-{number:05}" for number in range(count // CHECKS_PER_CELL)]
    entries, tasks = [], {}
    for cell in cells:
        for one in checks:
            key = digest_json([cell, one.name, seed])
            entries.append(PlanEntry(cell_id=cell, check=one.name, tier=one.tier, question="?", key=key))
            tasks[key] = Task(key=key, check=one, facets={}, facet_digests={}, code_digest="c")
    facts = tuple(
        CellFacts(id=cell, title="", stack="", device="sim", axes={}, provenance={}) for cell in cells
    )
    return Plan(profile="default", matrix_digest="m", cells=facts, entries=tuple(entries), tasks=tasks)


def fill(ledger: Ledger, made: Plan, share: float, chance: random.Random) -> None:
    run_id = ledger.begin_run(made.record(), [], {})
    for key, task in made.tasks.items():
        ledger.record(
            Outcome(
                key=key,
                check=task.check.name,
                tier=task.check.tier,
                state=State.COMPLETED,
                evidence=Evidence.SIMULATED,
                facets={},
                measurements={"good": chance.random() > share, "values": [0.1] * 20},
                run_id=run_id,
            )
        )
    ledger.finish_run(run_id, 0)


def figures() -> Iterator[Figure]:
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder)) as ledger:
        base, head = plan(OUTCOMES // 2, "base"), plan(OUTCOMES // 2, "head")
        fill(ledger, base, 0.02, chance)
        fill(ledger, head, 0.03, chance)
        whole, reading = [], []
        for _ in range(3):
            with timed() as took:
                judge_and_render(base, head, ledger)
            whole.append(took.cpu)
            with timed() as took:
                for one in (base, head):
                    read_attempts(one, ledger)
            reading.append(took.cpu)
    yield Figure(
        claim=f"gate over {OUTCOMES} outcomes, all formats",
        measured=min(whole),
        unit="s of CPU",
        limit=1,
        rival=min(reading),
        rival_name="reading the outcomes",
    )


def judge_and_render(base: Plan, head: Plan, ledger: Ledger) -> None:
    answers = read_attempts(head, ledger)
    earlier = read_attempts(base, ledger).outcomes
    inputs = GateInputs(
        base_name="base",
        head=verdicts_from_ledger(head, answers.outcomes, lambda _cell, _check: None),
        base=verdicts_from_ledger(base, earlier, lambda _cell, _check: None),
        base_keys={(entry.cell_id, entry.check): entry.key for entry in base.entries},
        flakes=flake_decisions(head, answers, ledger, now=time.time()),
    )
    report = judge_gate(inputs)
    for render in FORMATS.values():
        render(report)
