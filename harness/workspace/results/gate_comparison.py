"""The inputs of `npu-matrix gate`: the outcomes of this checkout's plan and of its base."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.devices.host.inventory import HostReport
from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RunRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Status
from harness.plan.change.revision import resolve_revision
from harness.plan.keys.key import key_changes
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan, plan_of_record
from harness.verdict.expectations import survey_expectations
from harness.verdict.gate.blame import place_to_blame
from harness.verdict.gate.gate import CellCheck, GateInputs
from harness.verdict.ledger_outcomes import flake_decisions, read_attempts, verdicts_from_ledger
from harness.verdict.triage.catalogue import LOCAL_NAME, catalogue_with
from harness.verdict.triage.diagnosis import triage_file
from harness.verdict.triage.diagnosis_text import in_short
from harness.verdict.verdict import Verdict
from harness.workspace.open_ledger import ledger_file
from harness.workspace.planning.open_plan import PlanContext, expectations
from harness.workspace.planning.other_host_plans import join_plans
from harness.workspace.planning.revision_comparison import plan_of_revision
from harness.workspace.results.run_report import REPRODUCE_OPTIONS

#: Maximum number of logs to read for root causes.
MOST_LOGS = 50


def gate_inputs(
    context: PlanContext,
    hosts: Mapping[str, HostReport],
    ledger: Ledger,
    base: str,
    *,
    selects_checks: bool,
    strict_coverage: bool,
    impacted_only: bool,
) -> GateInputs:
    """Everything that the gate judges: outcomes of this plan and of its base, flakes, causes of changes.

    hosts: cell id -> the host that ran it, if not this one. selects_checks: whether --check selects some of
    the checks; then checks that only the base has do not count as missing.
    """
    attempts = read_attempts(context.plan, ledger)
    expected = expectations(context.matrix, context.settings["profile"])
    base_name, base_plan, base_verdicts = _base(context, hosts, ledger, base)
    changes, places = _blame(context, base_plan)
    selected = {cell.id for cell in context.plan.cells}
    checks = {entry.check for entry in context.plan.entries}
    whole = len(selected) == len(context.matrix.cells(context.settings["profile"]).cells)
    head = verdicts_from_ledger(context.plan, attempts.outcomes, expected)
    return GateInputs(
        base_name=base_name,
        head=head,
        logs=_logs(context, head, ledger),
        base=base_verdicts,
        base_keys={
            name: entry.key
            for name, entry in base_plan.entries_by_name.items()
            # A check that was removed from the code counts as missing, unless --check selects others.
            if (entry.check in checks or not selects_checks) and (whole or entry.cell_id in selected)
        },
        flakes=flake_decisions(context.plan, attempts, ledger, now=time.time()),
        changes=changes,
        places=places,
        problems=_idle_expectations(context),
        notices=context.plan.notices,
        strict_coverage=strict_coverage,
        impacted_only=impacted_only,
        profile=context.plan.profile,
        options=context.settings.flags(*REPRODUCE_OPTIONS),
    )


def _logs(
    context: PlanContext, head: Mapping[CellCheck, Verdict], ledger: Ledger
) -> dict[CellCheck, tuple[Sequence[str], Sequence[str]]]:
    """Root causes, from those logs of failed tasks that are on this machine."""
    found: dict[CellCheck, tuple[Sequence[str], Sequence[str]]] = {}
    for name, verdict in head.items():
        outcome = verdict.outcome
        failed = verdict.status.value in {"fail", "error"}
        if not failed or outcome is None or outcome.log is None or len(found) >= MOST_LOGS:
            continue
        with contextlib.suppress(InfrastructureError, InputError):
            log = ledger.artifacts.get(outcome.log)
            found[name] = in_short(triage_file(log, catalogue_with(context.settings.root / LOCAL_NAME)))
    return found


def _base(
    context: PlanContext, hosts: Mapping[str, HostReport], ledger: Ledger, base: str
) -> tuple[str, PlanRecord, dict[CellCheck, Verdict]]:
    """The name of the base, its plan, and the verdicts of its entries."""
    settings = context.settings
    path = Path(base)
    # A folder and a branch may have the same name. Without a ledger in the folder, the branch is meant.
    if _has_ledger(path):
        return _base_of_ledger(base, ledger_file(path))
    run = ledger.run(base)
    if run is not None:
        plan = _readable(run)
        return f"run {base}", plan, _answered(plan, ledger, run.run_id)
    try:
        revision = resolve_revision(settings.root, base)
    except InputError:
        if path.is_dir():
            ledger_file(path)
        raise
    here = plan_of_revision(context, revision, (), ())
    socs = {host.soc: host for host in hosts.values()}
    plans = {
        soc: plan_of_revision(replace(context, host=host), revision, (), ()) for soc, host in socs.items()
    }
    plan = join_plans(here, {cell: plans[host.soc] for cell, host in hosts.items()})
    return str(revision), plan, _answered(plan, ledger, None)


def _has_ledger(path: Path) -> bool:
    return (path / FILE_NAME).is_file() or (path.is_file() and path.suffix == ".sqlite3")


def _base_of_ledger(base: str, file: Path) -> tuple[str, PlanRecord, dict[CellCheck, Verdict]]:
    _check_ledger(file)
    with Ledger.open(file.parent) as other:
        run = other.latest_run()
        if run is None:
            raise InputError("this ledger has no run", where=Location(file), fix="name a ledger with a run")
        plan = _readable(run)
        return f"{base} (run {run.run_id})", plan, _answered(plan, other, run.run_id)


def _readable(run: RunRecord) -> PlanRecord:
    """The plan of the run; InputError if it cannot be read."""
    _stored_plan(run.plan)
    return run.plan


def _check_ledger(file: Path) -> None:
    """Check that a file is a ledger, read-only, because opening it could change a file of another project."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("SELECT count(*) FROM outcomes").fetchone()
    except sqlite3.DatabaseError as error:
        raise InputError("this is not a ledger", where=Location(file), why=str(error)) from error


def _answered(plan: PlanRecord, ledger: Ledger, run_id: str | None) -> dict[CellCheck, Verdict]:
    """The verdicts of base entries with an outcome, by the current checks and without expectations."""
    if not plan.entries:
        return {}
    stored = _stored_plan(plan)
    outcomes = dict(read_attempts(stored, ledger).outcomes)
    if run_id is not None:
        outcomes |= {one.key: one for one in reversed(ledger.history(run_id=run_id, limit=100_000))}
    found = verdicts_from_ledger(stored, outcomes, lambda _cell, _check: None)
    unanswered = {Status.ERROR, Status.STALE}
    return {name: verdict for name, verdict in found.items() if verdict.status not in unanswered}


def _stored_plan(plan: PlanRecord) -> Plan:
    return plan_of_record(plan, {check.name: check for check in all_checks()})


def _blame(context: PlanContext, base: PlanRecord) -> tuple[dict[Any, Any], dict[Any, Any]]:
    earlier = base.tasks_by_name
    matrix = os.path.relpath(context.settings.path("matrix"), context.settings.root)
    cells = {cell.id: cell for cell in context.plan.cells}
    changes: dict[CellCheck, Sequence[str]] = {}
    places: dict[CellCheck, Any] = {}
    for name, task in context.plan.record().tasks_by_name.items():
        before = earlier.get(name)
        differs = before is not None and before.key != task.key
        found = key_changes(before, task, base.code, context.plan.code) if before and differs else ()
        changes[name] = [str(change) for change in found]
        places[name] = place_to_blame(found, task, cells[name[0]], matrix)
    return changes, places


def _idle_expectations(context: PlanContext) -> tuple[str, ...]:
    known = {check.name for check in all_checks()}
    return tuple(
        f"{one.where}: the expectation {one.id!r} {one.fault}"
        for one in survey_expectations(context.matrix, known, context.settings.root)
        if one.fault
    )
