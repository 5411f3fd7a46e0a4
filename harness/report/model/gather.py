"""Joins plan, verdicts and ledger into what a report is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.junit.junit_writer import JUnitCase
from harness.ledger.plan_record import PlanEntry
from harness.ledger.store import Ledger
from harness.outcome import ArtifactRef, Outcome, Status, Tier
from harness.plan.tasks.task import Plan, reproduce_command
from harness.report.model.earlier_runs import EarlierRuns
from harness.report.model.lock_files import exports_of
from harness.report.model.patch_facts import PatchFacts
from harness.report.model.relative_paths import KnownFolders
from harness.report.model.report_inputs import (
    CheckInput,
    ExcludedInput,
    PublishedInput,
    ReportInputs,
    ReportResult,
    RunFacts,
)
from harness.report.model.streak import HistoryEntry
from harness.report.model.survival_facts import SurvivalFacts
from harness.report.model.triage_card import card_of, diagnosed
from harness.verdict.triage.diagnosis_text import in_short
from harness.verdict.verdict import Standing, Verdict

#: More outcomes than any run records.
MANY = 10_000_000
#: Locks are long: of a larger matrix the report names the command that exports one.
MOST_EXPORTED = 200


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
    planned: dict[str, list[str]] = {}
    for entry in plan.entries:
        planned.setdefault(entry.cell_id, []).append(entry.check)
    exported = plan.cells if len(plan.cells) <= MOST_EXPORTED else ()
    return ReportInputs(
        generated=more.generated,
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
    return tuple(map(_junit_case, inputs.results))


def _junit_case(result: ReportResult) -> JUnitCase:
    verdict = result.verdict
    outcome = verdict.outcome
    return JUnitCase(
        suite=result.cell_id,
        name=result.check,
        status=_junit_status(verdict),
        reasons=_junit_reasons(verdict),
        seconds=outcome.seconds if outcome and not result.reused else 0.0,
        properties={
            "tier": result.entry.tier.value,
            "evidence": verdict.evidence.value if verdict.evidence else "none",
            "key": result.entry.key,
            "reproduce": result.reproduce,
        },
    )


def junit_suites(inputs: ReportInputs) -> dict[str, dict[str, str]]:
    """Properties of each suite: the cell, its stack and its axes."""
    return {
        cell.id: {"cell": cell.id, **({"stack": cell.stack} if cell.stack else {}), **cell.axes}
        for cell in inputs.cells
    }


def _junit_status(verdict: Verdict) -> Status:
    """JUnit has no expected failures: one must not turn a build red, an unexpected pass must."""
    if verdict.standing is Standing.KNOWN:
        return Status.NOT_RUN
    return Status.FAIL if verdict.standing is Standing.UNEXPECTED_PASS else verdict.status


def _junit_reasons(verdict: Verdict) -> tuple[str, ...]:
    if verdict.standing is Standing.KNOWN and verdict.expected:
        return (f"known failure: {verdict.expected.reason}", *verdict.reasons)
    if verdict.standing is Standing.UNEXPECTED_PASS:
        return ("expected to fail, but passed: remove the expected failure", *verdict.reasons)
    return verdict.reasons


def _columns(entries: tuple[PlanEntry, ...]) -> tuple[CheckInput, ...]:
    columns = {
        entry.check: CheckInput(name=entry.check, tier=entry.tier, question=entry.question)
        for entry in entries
    }
    return tuple(sorted(columns.values(), key=lambda column: column.tier.rank))


def _result(
    plan: Plan,
    entry: PlanEntry,
    verdict: Verdict,
    ledger: Ledger,
    more: ReportContext,
    folders: KnownFolders,
    history: tuple[HistoryEntry, ...],
) -> ReportResult:
    task = plan.tasks.get(entry.key)
    outcome = verdict.outcome
    this_run = more.run.run_id or (outcome.run_id if outcome else "")
    log = _path(ledger.artifacts, outcome.log) if outcome and outcome.log else None
    diagnosis = diagnosed(verdict, log)
    causes, cures = in_short(diagnosis) if diagnosis and diagnosis.known else ((), ())
    command = reproduce_command(entry.cell_id, entry.check, profile=plan.profile, options=more.run.options)
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
        reused=bool(outcome) and entry.key not in more.executed,
        reproduce=command if entry.key else "",
        log=log,
        files={digest: path for digest, path in paths.items() if path},
        # The log of a static check is its own report: a line of it that no signature matches is no mystery.
        diagnosis=(
            card_of(diagnosis) if diagnosis and (diagnosis.known or entry.tier is not Tier.STATIC) else None
        ),
        history=tuple(past for past in history if not this_run or past.run_id != this_run),
    )


def _path(store: ArtifactStore, ref: ArtifactRef) -> Path | None:
    try:
        return store.get(ref)
    except InfrastructureError:
        return None
