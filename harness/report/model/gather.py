"""Joins plan, verdicts and ledger into what a report is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.junit.junit_writer import JUnitCase
from harness.ledger.plan_record import CellFacts, PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import ArtifactRef, Outcome, Status, Tier
from harness.plan.tasks.task import Plan, reproduce_command
from harness.report.model.earlier_runs import EarlierRuns
from harness.report.model.lock_files import exports_of
from harness.report.model.patch_facts import PatchFacts
from harness.report.model.relative_paths import KnownFolders
from harness.report.model.report_inputs import (
    KNOWN,
    UNEXPECTED,
    UNEXPECTED_PASS,
    ArtifactInput,
    CellInput,
    CheckInput,
    ExcludedInput,
    ExpectationInput,
    FindingInput,
    HistoryEntry,
    PublishedInput,
    ReportInputs,
    ResultInput,
    RunFacts,
)
from harness.report.model.survival_facts import SurvivalFacts
from harness.report.model.triage_card import card_of, diagnosed
from harness.verdict.triage.diagnosis_text import in_short
from harness.verdict.verdict import Standing, Verdict

#: More outcomes than any run records.
MANY = 10_000_000
#: Locks are long: of a larger matrix the report names the command that exports one.
MOST_EXPORTED = 200
STANDINGS = {
    Standing.AS_EXPECTED: "",
    Standing.KNOWN: KNOWN,
    Standing.UNEXPECTED: UNEXPECTED,
    Standing.INCOMPLETE: UNEXPECTED,
    Standing.UNEXPECTED_PASS: UNEXPECTED_PASS,
}


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """What `gather` needs beyond plan, verdicts and ledger; `generated` is Unix seconds.

    since: the run to compare this one with; by default the last earlier run that planned at least half of
    the same checks. folders: name -> folder of this machine; the report shows the names instead of the paths.
    """

    generated: float
    run: RunFacts
    executed: Collection[str] = ()
    host: Mapping[str, str]
    excluded: tuple[ExcludedInput, ...] = ()
    published: tuple[PublishedInput, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict)
    since: str | None = None
    survival: SurvivalFacts | None = None
    patches: PatchFacts | None = None


def outcomes_of_run(ledger: Ledger, keys: Iterable[str], run_id: str) -> dict[str, Outcome]:
    """Key -> outcome as the run saw it: what it recorded itself, else what it could reuse.

    An outcome that the run tried to make again but did not get is not reused, even if the ledger has one.
    """
    wanted = list(keys)
    recorded = {outcome.key: outcome for outcome in reversed(ledger.history(run_id=run_id, limit=MANY))}
    left = {one.key for one in ledger.dispositions(run_id)}
    reused = ledger.get_many(key for key in wanted if key not in left)
    return {**reused, **{key: recorded[key] for key in wanted if key in recorded}}


def join_report_inputs(
    plan: Plan, verdicts: Iterable[Verdict], ledger: Ledger, more: ReportContext
) -> ReportInputs:
    """The report's inputs; an outcome's files that are gone are left out, not an error."""
    by_entry = {(verdict.cell_id, verdict.check): verdict for verdict in verdicts}
    outcomes = {verdict.key: verdict.outcome for verdict in by_entry.values() if verdict.outcome}
    past = EarlierRuns(plan, ledger, more.run.run_id)
    since = more.since or past.previous
    folders = KnownFolders(more.folders)
    few = len(plan.cells) <= MOST_EXPORTED
    planned: dict[str, list[str]] = {}
    for entry in plan.entries:
        planned.setdefault(entry.cell_id, []).append(entry.check)
    return ReportInputs(
        generated=more.generated,
        cells=tuple(
            replace(
                _cell(cell, planned.get(cell.id, [])),
                exports=exports_of(cell.id, plan, outcomes, ledger) if few else {},
            )
            for cell in plan.cells
        ),
        checks=_columns(plan.entries),
        results=tuple(
            _result(
                plan,
                entry,
                by_entry[entry.cell_id, entry.check],
                ledger,
                more,
                folders,
                past.history(entry),
            )
            for entry in plan.entries
            if (entry.cell_id, entry.check) in by_entry
        ),
        run=more.run,
        host=more.host,
        excluded=more.excluded,
        published=more.published,
        runs=past.runs,
        notes=(*plan.notices, *(str(notice) for notice in ledger.notices)),
        earlier=past.earlier(since) if since else None,
        survival=more.survival,
        patches=more.patches,
    )


def junit_cases(inputs: ReportInputs) -> tuple[JUnitCase, ...]:
    """The results as JUnit cases: a suite per cell, a case per check."""
    return tuple(
        JUnitCase(
            suite=result.cell_id,
            name=result.check,
            status=_junit_status(result),
            reasons=_junit_reasons(result),
            seconds=0.0 if result.reused else result.seconds,
            properties={
                "tier": result.tier.value,
                "evidence": result.evidence.value if result.evidence else "none",
                "key": result.key,
                "reproduce": result.reproduce,
            },
        )
        for result in inputs.results
    )


def junit_suites(inputs: ReportInputs) -> dict[str, dict[str, str]]:
    """Properties of each suite: the cell, its stack and its axes."""
    return {
        cell.id: {"cell": cell.id, **({"stack": cell.stack} if cell.stack else {}), **cell.axes}
        for cell in inputs.cells
    }


def _junit_status(result: ResultInput) -> Status:
    """JUnit has no expected failures: one must not turn a build red, an unexpected pass must."""
    if result.expected == KNOWN:
        return Status.NOT_RUN
    return Status.FAIL if result.expected == UNEXPECTED_PASS else result.status


def _junit_reasons(result: ResultInput) -> tuple[str, ...]:
    if result.expected == KNOWN and result.expectation:
        return (f"known failure: {result.expectation.reason}", *result.reasons)
    if result.expected == UNEXPECTED_PASS:
        return ("expected to fail, but passed: remove the expected failure", *result.reasons)
    return result.reasons


def _columns(entries: tuple[PlanEntry, ...]) -> tuple[CheckInput, ...]:
    columns = {
        entry.check: CheckInput(name=entry.check, tier=entry.tier, question=entry.question)
        for entry in entries
    }
    return tuple(sorted(columns.values(), key=lambda column: column.tier.rank))


def _cell(cell: CellFacts, planned: list[str]) -> CellInput:
    return CellInput(
        id=cell.id,
        title=cell.title,
        stack=cell.stack,
        axes=cell.axes,
        provenance=cell.provenance,
        findings=tuple(
            FindingInput(what=finding["what"], source=finding["source"]) for finding in cell.findings
        ),
        device=cell.device,
        recipe=cell.recipe,
        planned=tuple(planned),
    )


def _result(
    plan: Plan,
    entry: PlanEntry,
    verdict: Verdict,
    ledger: Ledger,
    more: ReportContext,
    folders: KnownFolders,
    history: tuple[HistoryEntry, ...],
) -> ResultInput:
    task = plan.tasks.get(entry.key)
    outcome, expected = verdict.outcome, verdict.expected
    this_run = more.run.run_id or (outcome.run_id if outcome else "")
    log = _path(ledger.artifacts, outcome.log) if outcome and outcome.log else None
    diagnosis = diagnosed(verdict, log)
    causes, cures = in_short(diagnosis) if diagnosis and diagnosis.known else ((), ())
    result = ResultInput(
        cell_id=entry.cell_id,
        check=entry.check,
        tier=entry.tier,
        question=entry.question,
        status=verdict.status,
        expected=STANDINGS[verdict.standing],
        reasons=folders.replace_paths((*verdict.reasons, *causes)),
        remedies=folders.replace_paths((*verdict.remedies, *cures)),
        evidence=verdict.evidence,
        key=entry.key,
        facets=dict(task.facets) if task else {},
        reused=bool(outcome) and entry.key not in more.executed,
        reproduce=(
            reproduce_command(entry.cell_id, entry.check, profile=plan.profile, options=more.run.options)
            if entry.key
            else ""
        ),
        # The log of a static check is its own report: a line of it that no signature matches is no mystery.
        diagnosis=(
            card_of(diagnosis) if diagnosis and (diagnosis.known or entry.tier is not Tier.STATIC) else None
        ),
        history=tuple(past for past in history if not this_run or past.run_id != this_run),
        expectation=(
            ExpectationInput(reason=expected.reason, source=expected.source, until=expected.until)
            if expected
            else None
        ),
    )
    if outcome is None:
        return result
    return replace(
        result,
        measurements=folders.replace_paths(outcome.measurements),
        environment=folders.replace_paths(outcome.environment),
        started=outcome.started,
        seconds=outcome.seconds,
        attempt=outcome.attempt,
        run_id=outcome.run_id,
        log_path=log,
        artifacts=tuple(
            ArtifactInput(name=ref.name, digest=ref.digest, size=ref.size, path=_path(ledger.artifacts, ref))
            for ref in outcome.artifacts
        ),
    )


def _path(store: ArtifactStore, ref: ArtifactRef) -> Path | None:
    try:
        return store.get(ref)
    except InfrastructureError:
        return None
