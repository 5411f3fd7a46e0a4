"""The gate over many outcomes, half of them the base's: seconds from an open ledger to all formats.

python benchmarks/gate/gate_benchmark.py --outcomes 10000
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from harness.check import Check
from harness.digest import digest_json
from harness.ledger.plan_record import CellFacts, PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.verdict.gate.gate import GateInputs, judge_gate
from harness.verdict.gate.gate_format import FORMATS
from harness.verdict.ledger_outcomes import flake_decisions, read_attempts, verdicts_from_ledger

GOAL_SECONDS = 1.0
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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--outcomes", type=int, default=10_000)
    options = parser.parse_args()
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder)) as ledger:
        base, head = plan(options.outcomes // 2, "base"), plan(options.outcomes // 2, "head")
        fill(ledger, base, 0.02, chance)
        fill(ledger, head, 0.03, chance)
        best, report = float("inf"), None
        for _ in range(3):
            started = time.perf_counter()
            answers = read_attempts(head, ledger)
            inputs = GateInputs(
                base_name="base",
                head=verdicts_from_ledger(head, answers.outcomes, lambda _cell, _check: None),
                base=verdicts_from_ledger(
                    base, read_attempts(base, ledger).outcomes, lambda _cell, _check: None
                ),
                base_keys={(entry.cell_id, entry.check): entry.key for entry in base.entries},
                flakes=flake_decisions(head, answers, ledger, now=time.time()),
            )
            report = judge_gate(inputs)
            for render in FORMATS.values():
                render(report)
            best = min(best, time.perf_counter() - started)
    assert report is not None
    json.dump(
        {
            "schema": {"name": "npu-matrix.benchmark.gate", "version": 1},
            "outcomes": options.outcomes,
            "seconds": round(best, 3),
            "goal_seconds": GOAL_SECONDS,
            "classes": {one.value: count for one, count in report.counts.items()},
        },
        sys.stdout,
        indent=2,
    )
    print()
    return int(best > GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
