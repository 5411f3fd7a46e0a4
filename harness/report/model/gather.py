"""Joins a plan, its verdicts and the ledger into `ReportInputs`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.devices.sim.refusals.permissive_calls import permissive_reasons
from harness.errors import InfrastructureError, Problem
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.junit.junit_writer import JUnitCase
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import ArtifactRef, Outcome, Status, Tier
from harness.plan.tasks.task import Plan, reproduce_command
from harness.report.model.earlier_runs import EarlierRuns, end_of_day
from harness.report.model.lock_files import exports_of
from harness.report.model.relative_paths import KnownFolders
from harness.report.model.report_inputs import (
    CheckColumn,
    ComparisonRun,
    ReportInputs,
    ReportResult,
    RunFacts,
)
from harness.report.model.triage_card import card_of, diagnosed
from harness.verdict.triage.diagnosis_text import in_short
from harness.verdict.verdict import Standing, Verdict

#: A limit that is larger than the number of outcomes of any run.
MANY = 10_000_000
#: Locks are long: for more cells the report only shows the command that exports a lock.
MOST_EXPORTED = 200


def outcomes_of_run(ledger: Ledger, keys: Iterable[str], run_id: str) -> dict[str, Outcome]:
    """Key -> the outcome that the run recorded, otherwise the stored outcome that it reused.

    If the run tried to execute a task again and failed, or its outcome was lost, another outcome of the task
    is not used; nor is one that a later run recorded.
    """
    planned = list(keys)
    recorded = {outcome.key: outcome for outcome in reversed(ledger.history(run_id=run_id, limit=MANY))}
    without_outcome = {disposition.key for disposition in ledger.dispositions(run_id)}
    reused = ledger.reusable_in_run((key for key in planned if key not in without_outcome), run_id)
    return {**reused, **{key: recorded[key] for key in planned if key in recorded}}


def _clock(ledger: Ledger, facts: ReportInputs) -> list[Problem]:
    notice = ledger.clock_notice(facts.run.run_id)
    return [notice] if notice else []


def join_report_inputs(
    plan: Plan,
    verdicts: Iterable[Verdict],
    ledger: Ledger,
    facts: ReportInputs,
    *,
    executed: Collection[str] = (),
    folders: Mapping[str, str] | None = None,
    since: str | None = None,
) -> ReportInputs:
    """`facts` with the cells, checks and results of the plan.

    executed: keys of the tasks that this run executed. folders: name -> folder of this machine; the report
    shows the names instead of the paths. since: the run or the day (YYYY-MM-DD) to compare with, by default
    the last earlier run that planned at least half of the same checks. Files of outcomes that no longer
    exist are left out.
    """
    by_entry = {(verdict.cell_id, verdict.check): verdict for verdict in verdicts}
    outcomes = {verdict.key: verdict.outcome for verdict in by_entry.values() if verdict.outcome}
    past = EarlierRuns(plan, ledger, facts.run.run_id, facts.generated)
    since = since or past.previous
    known_folders = KnownFolders(folders or {})
    planned: dict[str, list[str]] = {}
    for entry in plan.entries:
        planned.setdefault(entry.cell_id, []).append(entry.check)
    exported = plan.cells if len(plan.cells) <= MOST_EXPORTED else ()
    return replace(
        facts,
        cells=plan.cells,
        planned={cell: tuple(checks) for cell, checks in planned.items()},
        exports={cell.id: exports_of(cell.id, plan, outcomes, ledger) for cell in exported},
        checks=_columns(plan.entries),
        results=tuple(
            _result(
                plan,
                entry,
                by_entry[entry.cell_id, entry.check],
                ledger,
                facts.run,
                executed,
                known_folders,
                past,
            )
            for entry in plan.entries
            if (entry.cell_id, entry.check) in by_entry
        ),
        runs=past.runs,
        notes=(*plan.notices, *(str(notice) for notice in (*ledger.notices, *_clock(ledger, facts)))),
        earlier=_comparison(past, since) if since else None,
    )


def _comparison(past: EarlierRuns, since: str) -> ComparisonRun | None:
    when = end_of_day(since)
    return past.earlier(since) if when is None else past.as_of(since, when)


def junit_cases(inputs: ReportInputs) -> tuple[JUnitCase, ...]:
    """The results as JUnit cases: one suite per cell, one case per check."""
    return tuple(map(_junit_case, inputs.results))


def _junit_case(result: ReportResult) -> JUnitCase:
    verdict = result.verdict
    outcome = verdict.outcome
    permissive = permissive_reasons(verdict.reasons)
    return JUnitCase(
        suite=result.cell_id,
        name=result.check,
        status=_junit_status(verdict),
        reasons=_junit_reasons(verdict),
        seconds=outcome.seconds if outcome and not result.reused else 0.0,
        properties={
            "tier": result.entry.tier.value,
            "evidence": verdict.evidence.value if verdict.evidence else "none",
            "origin": _origin(outcome),
            "key": result.entry.key,
            "reproduce": result.reproduce,
            # JUnit has no text for a test that passed.
            **({"permissive": permissive[0]} if permissive else {}),
        },
    )


def _origin(outcome: Outcome | None) -> str:
    if outcome is None or not outcome.trust.foreign:
        return "here" if outcome else "none"
    return f"signed by {outcome.trust.signer}" if outcome.trust.signer else "elsewhere, not signed"


def junit_suites(inputs: ReportInputs) -> dict[str, dict[str, str]]:
    """Properties of each suite: the cell, its stack and its axes."""
    return {
        cell.id: {"cell": cell.id, **({"stack": cell.stack} if cell.stack else {}), **cell.axes}
        for cell in inputs.cells
    }


def _junit_status(verdict: Verdict) -> Status:
    """JUnit has no expected failures: they are reported as skipped, and an unexpected pass as a failure."""
    if verdict.standing is Standing.KNOWN:
        return Status.NOT_RUN
    return Status.FAIL if verdict.standing is Standing.UNEXPECTED_PASS else verdict.status


def _junit_reasons(verdict: Verdict) -> tuple[str, ...]:
    if verdict.standing is Standing.KNOWN and verdict.expected:
        return (f"known failure: {verdict.expected.reason}", *verdict.reasons)
    if verdict.standing is Standing.UNEXPECTED_PASS:
        return ("expected to fail, but passed: remove the expected failure", *verdict.reasons)
    return verdict.reasons


def _columns(entries: tuple[PlanEntry, ...]) -> tuple[CheckColumn, ...]:
    columns = {
        entry.check: CheckColumn(name=entry.check, tier=entry.tier, question=entry.question)
        for entry in entries
    }
    return tuple(sorted(columns.values(), key=lambda column: column.tier.rank))


def _result(
    plan: Plan,
    entry: PlanEntry,
    verdict: Verdict,
    ledger: Ledger,
    run: RunFacts,
    executed: Collection[str],
    folders: KnownFolders,
    past: EarlierRuns,
) -> ReportResult:
    task = plan.tasks.get(entry.key)
    outcome = verdict.outcome
    this_run = run.run_id or (outcome.run_id if outcome else "")
    history = past.history(entry, verdict.expected, other_than=this_run)
    log = _path(ledger.artifacts, outcome.log) if outcome and outcome.log else None
    diagnosis = diagnosed(verdict, log)
    causes, cures = in_short(diagnosis) if diagnosis and diagnosis.known else ((), ())
    command = reproduce_command(entry.cell_id, entry.check, profile=plan.profile, options=run.options)
    paths = {ref.digest: _path(ledger.artifacts, ref) for ref in (outcome.artifacts if outcome else ())}
    return ReportResult(
        entry=entry,
        verdict=replace(
            verdict,
            reasons=folders.replace_paths((*verdict.reasons, *causes)),
            remedies=folders.replace_paths((*verdict.remedies, *cures)),
            outcome=replace(
                outcome,
                measurements=folders.replace_paths(outcome.measurements),
                environment=folders.replace_paths(outcome.environment),
            )
            if outcome
            else None,
        ),
        facets=dict(task.facets) if task else {},
        reused=bool(outcome) and entry.key not in executed,
        reproduce=command if entry.key else "",
        log=log,
        files={digest: path for digest, path in paths.items() if path},
        # The log of a static check lists its own findings, so that a line without a signature needs no card.
        diagnosis=(
            card_of(diagnosis) if diagnosis and (diagnosis.known or entry.tier is not Tier.STATIC) else None
        ),
        history=history,
        turns=past.turns(entry, history, verdict),
        hardware=past.last_on_hardware(entry, verdict),
    )


def _path(store: ArtifactStore, ref: ArtifactRef) -> Path | None:
    try:
        return store.get(ref)
    except InfrastructureError:
        return None
