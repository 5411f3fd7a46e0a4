"""A ledger with several runs of one check on some cells, with inputs that change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.check import Check
from harness.digest import canonical_json, digest_bytes
from harness.ledger.plan_record import CellFacts, PlanEntry, PlannedExpectation
from harness.ledger.run_record import Disposition
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Judgement, Measured, Origin, Outcome, State, Status, Tier
from harness.plan.tasks.task import Plan, Task
from harness.report.model.gather import join_report_inputs, outcomes_of_run
from harness.report.model.report_inputs import ReportInputs, RunFacts
from harness.verdict.plan_verdicts import judge_plan
from harness.verdict.verdict import ExpectedFailure

START = 1_790_000_000.0
HOUR = 3600.0


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    good = measurements["good"]
    return Judgement(status=Status.PASS) if good else Judgement(status=Status.FAIL, reasons=("It is wrong.",))


def run(_context: object) -> Measured:
    return Measured(measurements={"good": True}, evidence=Evidence.STATIC)


PROBE = Check(name="probe", tier=Tier.STATIC, question="?", facets=("pins",), run=run, judge=judge)


def key_of(pins: str) -> str:
    return digest_bytes(canonical_json({"probe": pins}).encode())


def expectation(cell: str, until: str = "", because: tuple[str, ...] = ()) -> PlannedExpectation:
    """An expected failure of `probe` on a cell."""
    return PlannedExpectation(
        id=f"known-{cell}",
        check="probe",
        state="fail",
        reason="the upstream is wrong",
        source="https://example.org/issues/1",
        owner="team-a",
        until=until,
        cells=(cell,),
        because=because,
    )


def plan_of(pins: Mapping[str, str]) -> Plan:
    """A plan that asks `probe` of each cell with the pins given for it."""
    tasks = {
        key_of(value): Task(
            key=key_of(value),
            check=PROBE,
            facets={"pins": value},
            facet_digests={"pins": digest_bytes(value.encode())},
            code_digest="c0de",
        )
        for value in pins.values()
    }
    return Plan(
        profile="default",
        matrix_digest="",
        cells=tuple(
            CellFacts(id=cell, title=cell, stack="", device="sim", axes={"verl": "0.9"}, provenance={})
            for cell in pins
        ),
        entries=tuple(
            PlanEntry(cell_id=cell, check="probe", tier=Tier.STATIC, question="?", key=key_of(value))
            for cell, value in pins.items()
        ),
        tasks=tasks,
    )


class Runs:
    """Runs one hour apart; `go` records one, `inputs` reads the report's inputs of it."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger.open(folder)
        self.now = START

    def go(
        self,
        pins: Mapping[str, str],
        good: Mapping[str, bool] | None = None,
        *,
        left: Mapping[str, tuple[Status, str]] | None = None,
        evidence: Evidence = Evidence.STATIC,
        finished: bool = True,
        expected: tuple[PlannedExpectation, ...] | None = (),
        machine: str = "",
        revision: str = "",
    ) -> str:
        """A run; `good` says how each cell's task came out, a cell not in it was reused or did not run."""
        self.now += HOUR
        plan = replace(plan_of(pins), expected=expected)
        facts = {"revision": revision, "host": machine}
        run_id = self.ledger.begin_run(plan.record(), ["run"], facts, now=self.now)
        for cell, value in (good or {}).items():
            self.record(pins[cell], run_id, good=value, evidence=evidence, machine=machine)
        dispositions = [
            Disposition(cell_id=cell, check="probe", key=key_of(pins[cell]), status=status, reason=why)
            for cell, (status, why) in (left or {}).items()
        ]
        self.ledger.record_dispositions(run_id, dispositions)
        if finished:
            self.ledger.finish_run(run_id, 0, now=self.now + 60)
        return run_id

    def record(
        self,
        pins: str,
        run_id: str,
        *,
        good: bool,
        evidence: Evidence = Evidence.STATIC,
        machine: str = "",
    ) -> Outcome:
        outcome = Outcome(
            key=key_of(pins),
            check="probe",
            tier=Tier.STATIC,
            state=State.COMPLETED,
            evidence=evidence,
            facets={},
            measurements={"good": good},
            started=self.now,
            finished=self.now + 30,
            run_id=run_id,
            origin=Origin(host=machine) if machine else None,
        )
        return self.ledger.record(outcome)

    def inputs(
        self,
        pins: Mapping[str, str],
        run_id: str,
        since: str | None = None,
        expected: ExpectedFailure | None = None,
    ) -> ReportInputs:
        """What the report of a run is made of. expected: the expectation of today for every check."""
        plan = plan_of(pins)
        outcomes = outcomes_of_run(self.ledger, plan.tasks, run_id)
        dispositions = self.ledger.dispositions(run_id)
        verdicts = judge_plan(plan, outcomes, dispositions, lambda _cell, _check: expected)
        run = RunFacts(run_id=run_id, started=self.now)
        facts = ReportInputs(generated=self.now + 120, run=run)
        return join_report_inputs(plan, verdicts, self.ledger, facts, since=since)
