"""The inputs of `npu-matrix gate`: the outcomes of this checkout's plan and of its base."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.devices.host.inventory import HostReport
from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.plan_record import PlanEntry, PlanRecord, SkipCause
from harness.ledger.run_record import RunRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.plan.change.revision import Revision, checkout_revision, resolve_revision
from harness.plan.keys.key import key_changes
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan, plan_of_record
from harness.run.scheduling.altered_outcomes import altered_outcomes
from harness.settings import DEFAULT_PROFILE, Settings
from harness.verdict.expectations import survey_expectations
from harness.verdict.gate.blame import place_to_blame
from harness.verdict.gate.gate import GateInputs
from harness.verdict.gate.gate_report import COMPARABLE, CellCheck, GateScope, Place
from harness.verdict.ledger_outcomes import (
    flake_decisions,
    outdated_attempts,
    read_attempts,
    verdicts_from_ledger,
)
from harness.verdict.triage.catalogue import LOCAL_NAME, catalogue_with
from harness.verdict.triage.diagnosis import triage_file
from harness.verdict.triage.diagnosis_text import in_short
from harness.verdict.verdict import Verdict
from harness.workspace.open_ledger import ledger_file, read_ledger
from harness.workspace.planning.open_plan import PlanContext, expectations, open_plan
from harness.workspace.planning.other_host_plans import add_outcomes_of_other_hosts, join_plans
from harness.workspace.planning.revision_comparison import plan_of_revision
from harness.workspace.results.gate_scope import (
    CheckoutChange,
    change_of_checkout,
    import_problems,
    matrix_changes,
    missing_origins,
    plan_changes,
    stored_problems,
    unread_files,
)
from harness.workspace.results.run_report import REPRODUCE_OPTIONS

#: Maximum number of logs to read for root causes.
MOST_LOGS = 50


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What the user asks of a gate: the base and the options of the command."""

    base: str
    only: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    impacted_only: bool = False
    awaiting: tuple[str, ...] = ()
    accept_removed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """The plan that a gate judges: the whole profile, and what the user selected beyond it.

    selected: the entries that the user selected, None for all. hosts: cell id -> the host that ran it, if not
    this one. own_keys: the tasks that this host can run.
    """

    context: PlanContext
    selected: frozenset[CellCheck] | None
    hosts: Mapping[str, HostReport]
    own_keys: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Base:
    """The base: its plan, with the cell ids of this checkout, and the verdicts on its entries.

    revision: None if the base is a run or another ledger. matrix: None if it cannot be read. cells: cell id
    of this checkout -> cell id on the base, where they differ.
    """

    name: str
    plan: PlanRecord
    verdicts: Mapping[CellCheck, Verdict]
    revision: Revision | None = None
    matrix: Matrix | None = None
    cells: Mapping[str, str] = field(default_factory=dict)


def open_gate_plan(settings: Settings, ledger: Ledger, options: GateOptions) -> GatePlan:
    """Plan the whole profile, because a change can affect more than the user selects with --only and --check.

    InputError if these select nothing.
    """
    own = open_plan(settings)
    whole, hosts = add_outcomes_of_other_hosts(own, ledger, (), ())
    own_keys = frozenset(own.plan.tasks)
    if not options.only and not options.checks:
        return GatePlan(context=whole, selected=None, hosts=hosts, own_keys=own_keys)
    own_part = open_plan(settings, only=options.only, checks=options.checks)
    part, part_hosts = add_outcomes_of_other_hosts(own_part, ledger, options.only, options.checks)
    chosen = {(entry.cell_id, entry.check): entry for entry in part.plan.entries}
    entries = tuple(chosen.get((entry.cell_id, entry.check), entry) for entry in whole.plan.entries)
    plan = replace(whole.plan, entries=entries, tasks={**whole.plan.tasks, **part.plan.tasks})
    return GatePlan(
        context=replace(whole, plan=plan),
        selected=frozenset(chosen),
        hosts={**hosts, **part_hosts},
        own_keys=own_keys | frozenset(own_part.plan.tasks),
    )


def gate_inputs(planned: GatePlan, ledger: Ledger, options: GateOptions) -> GateInputs:
    """Everything that the gate judges: outcomes of this plan and of its base, flakes, causes of changes."""
    context = planned.context
    plan, profile = context.plan, context.plan.profile
    attempts = read_attempts(plan, ledger)
    expected = expectations(context.matrix, profile)
    base = _base(planned, ledger, options.base)
    changes, places = _blame(context, base.plan)
    altered = altered_outcomes(plan.tasks, attempts.outcomes, ledger.artifacts)
    outdated = outdated_attempts(plan, attempts) | altered
    head = verdicts_from_ledger(plan, attempts.outcomes, expected, outdated)
    base_entries = base.plan.entries_by_name
    head_entries = {(entry.cell_id, entry.check): entry for entry in plan.entries}
    changed = change_of_checkout(context.settings, base.revision) if base.revision else None
    by_name = {check.name for check in all_checks()}
    flags = context.settings.flags(*REPRODUCE_OPTIONS)
    chosen = () if profile == DEFAULT_PROFILE else ("--profile", profile)
    return GateInputs(
        base_name=base.name,
        head=head,
        head_keys={name: _key(entry, None) for name, entry in head_entries.items()},
        logs=_logs(context, head, ledger),
        base={name: one for name, one in base.verdicts.items() if one.status in COMPARABLE},
        base_keys={name: _key(entry, head_entries.get(name)) for name, entry in base_entries.items()},
        base_statuses={
            name: one.status
            for name, one in base.verdicts.items()
            if (one.outcome and not one.outcome.trust.claimed) or one.status is Status.BLOCKED
        },
        base_expected=_base_expectations(base, head),
        selected=planned.selected,
        hardware=frozenset(name for name, one in head_entries.items() if _cause(one) is SkipCause.HOST),
        awaiting=options.awaiting,
        accept_removed=options.accept_removed,
        flakes=flake_decisions(plan, attempts, ledger, now=time.time()),
        changes=changes,
        places=places,
        problems=(
            *_idle_expectations(context, by_name),
            *import_problems(context.settings, changed.files if changed else ()),
            *(stored_problems(changed) if changed else ()),
        ),
        notices=plan.notices,
        scope=_scope(context, base, head_entries, changed),
        impacted_only=options.impacted_only,
        profile=profile,
        options=flags,
        base_command=shlex.join(["npu-matrix", *flags, *chosen, "gate", "--base", options.base, "--run-base"])
        if base.revision
        else "",
        base_cells=base.cells,
        mirrors={
            name: repository
            for name, verdict in head.items()
            if verdict.status is Status.NOT_RUN and (repository := _missing_sources(plan, verdict.key))
        },
    )


def _key(entry: PlanEntry, here: PlanEntry | None) -> str:
    """The key of an entry, also if the host cannot run it; "" if nothing of this plan runs it.

    here: the entry of this checkout. If the user selected a check by name that the profile leaves out, its
    key is compared too.
    """
    cause = _cause(entry)
    named = cause is SkipCause.PROFILE and here is not None and bool(here.key)
    return entry.skip.key if entry.skip and (cause is SkipCause.HOST or named) else entry.key


def _cause(entry: PlanEntry | None) -> SkipCause | None:
    return entry.skip.cause if entry and entry.skip else None


def _missing_sources(plan: Plan, key: str) -> str:
    """The repository of the first upstream of a task that is a commit, or ""."""
    facets = plan.tasks[key].facets.values() if key in plan.tasks else ()
    trees = [facet for facet in facets if isinstance(facet, Mapping) and facet.get("kind") == "commit"]
    return next((str(tree["repository"]) for tree in trees if tree.get("repository")), "")


def _base_expectations(base: _Base, head: Mapping[CellCheck, Verdict]) -> dict[CellCheck, str]:
    """(cell, check) -> where the base declares an expected failure that this checkout does not have."""
    if base.matrix is None:
        return {}
    expected = expectations(base.matrix, base.plan.profile)
    found = {}
    for (cell, check), verdict in head.items():
        earlier = expected(base.cells.get(cell, cell), check) if verdict.expected is None else None
        if earlier is not None:
            found[cell, check] = earlier.where
    return found


def _scope(
    context: PlanContext,
    base: _Base,
    head_entries: Mapping[CellCheck, PlanEntry],
    changed: CheckoutChange | None,
) -> GateScope:
    base_entries = base.plan.entries_by_name

    def changed_and_left_out(name: CellCheck, entry: PlanEntry) -> bool:
        before = base_entries.get(name)
        same = (
            before is not None
            and before.skip is not None
            and before.skip.key == (entry.skip or before.skip).key
        )
        return _cause(entry) is SkipCause.PROFILE and not same

    files = changed.files if changed else ()
    notes = matrix_changes(context.matrix, base.matrix, context.plan.profile) if base.matrix else ()
    if base.revision and base.matrix is None:
        notes = (
            "not looked at: changes of expectations and profiles; the matrix of the base cannot be read",
        )
    return GateScope(
        profile=context.plan.profile,
        commit=base.revision.commit if base.revision else "",
        is_head=base.revision is not None and not files and base.revision.commit == _head(context.settings),
        changed_files=len(files) if changed else None,
        unread_files=unread_files(context.settings, files, (context.plan.record(), base.plan)),
        left_out=tuple(name for name, entry in head_entries.items() if changed_and_left_out(name, entry)),
        notes=(
            *plan_changes(context.plan.record(), base.plan),
            *notes,
            *missing_origins(context.settings),
        ),
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


def _head(settings: Settings) -> str:
    """The commit of this checkout."""
    return checkout_revision(settings.root).removesuffix("+")


def _base(planned: GatePlan, ledger: Ledger, base: str) -> _Base:
    """The base with this name: another ledger, a run of this ledger, or a git revision."""
    settings = planned.context.settings
    path = Path(base)
    run = ledger.run(base)
    stored = _has_ledger(path) or run is not None
    try:
        revision = resolve_revision(settings.root, base)
    except (InputError, InfrastructureError):
        if _has_ledger(path):
            return _base_of_ledger(planned, base, ledger_file(path))
        if run is not None:
            return _base_of_run(planned, f"run {base}", run, ledger)
        if path.is_dir():
            # Its error says that the folder has no ledger.
            ledger_file(path)
        raise
    if stored:
        # Otherwise a change could replace its base: with a folder that has the name of the base branch.
        raise InputError(
            f"{base} is both a git revision and {'a ledger' if _has_ledger(path) else 'a run'}",
            fix=f"write refs/heads/{base} or the commit for the revision, or ./{base} for the ledger",
        )
    here = plan_of_revision(planned.context, revision, (), ())
    socs = {host.soc: host for host in planned.hosts.values()}
    plans = {
        soc: plan_of_revision(replace(planned.context, host=host), revision, (), ()).plan
        for soc, host in socs.items()
    }
    plan = join_plans(here.plan, {cell: plans[host.soc] for cell, host in planned.hosts.items()})
    plan, cells = _with_cell_ids_of(plan, planned.context.plan)
    return _Base(
        name=str(revision),
        plan=plan,
        verdicts=_verdicts_on(plan, ledger, None),
        revision=revision,
        matrix=here.matrix,
        cells=cells,
    )


def _with_cell_ids_of(base: PlanRecord, here: Plan) -> tuple[PlanRecord, dict[str, str]]:
    """The plan of the base, in which the cell of a stack whose versions were edited has the id that it has
    here; and for these cells, id here -> id on the base."""
    ids = {cell.id for cell in here.cells}
    known = {cell.id for cell in base.cells}
    stacks = {cell.stack: cell.id for cell in here.cells if cell.stack and cell.id not in known}
    names = {
        cell.id: stacks[cell.stack] for cell in base.cells if cell.id not in ids and cell.stack in stacks
    }
    renamed = replace(
        base,
        cells=tuple(replace(cell, id=names.get(cell.id, cell.id)) for cell in base.cells),
        entries=tuple(
            replace(entry, cell_id=names.get(entry.cell_id, entry.cell_id)) for entry in base.entries
        ),
    )
    return renamed, {new: old for old, new in names.items()}


def _has_ledger(path: Path) -> bool:
    return (path / FILE_NAME).is_file() or (path.is_file() and path.suffix == ".sqlite3")


def _base_of_ledger(planned: GatePlan, base: str, file: Path) -> _Base:
    with read_ledger(planned.context.settings, file) as other:
        run = other.latest_run()
        if run is None:
            raise InputError("this ledger has no run", where=Location(file), fix="name a ledger with a run")
        return _base_of_run(planned, f"{base} (run {run.run_id})", run, other)


def _base_of_run(planned: GatePlan, name: str, run: RunRecord, ledger: Ledger) -> _Base:
    """A run as the base; InputError if its plan cannot be read."""
    _stored_plan(run.plan)
    plan, cells = _with_cell_ids_of(run.plan, planned.context.plan)
    return _Base(name=name, plan=plan, verdicts=_verdicts_on(plan, ledger, run.run_id), cells=cells)


def _verdicts_on(plan: PlanRecord, ledger: Ledger, run_id: str | None) -> dict[CellCheck, Verdict]:
    """The verdicts of the entries of a base, by the current checks and without expectations."""
    if not plan.entries:
        return {}
    stored = _stored_plan(plan)
    outcomes = dict(read_attempts(stored, ledger).outcomes)
    if run_id is not None:
        outcomes |= {one.key: one for one in reversed(ledger.history(run_id=run_id, limit=100_000))}
    return verdicts_from_ledger(stored, outcomes, lambda _cell, _check: None)


def _stored_plan(plan: PlanRecord) -> Plan:
    return plan_of_record(plan, {check.name: check for check in all_checks()})


def _blame(
    context: PlanContext, base: PlanRecord
) -> tuple[dict[CellCheck, tuple[str, ...]], dict[CellCheck, Place]]:
    """By entry: the inputs that the change modified, and the line that sets them."""
    earlier = base.tasks_by_name
    matrix = os.path.relpath(context.settings.path("matrix"), context.settings.root)
    cells = {cell.id: cell for cell in context.plan.cells}
    changes: dict[CellCheck, tuple[str, ...]] = {}
    places: dict[CellCheck, Place] = {}
    for name, task in context.plan.record().tasks_by_name.items():
        before = earlier.get(name)
        differs = before is not None and before.key != task.key
        found = key_changes(before, task, base.code, context.plan.code) if before and differs else ()
        changes[name] = tuple(str(change) for change in found)
        places[name] = place_to_blame(found, task, cells[name[0]], matrix)
    return changes, places


def _idle_expectations(context: PlanContext, known: Collection[str]) -> tuple[str, ...]:
    return tuple(
        f"{one.where}: the expectation {one.id!r} {one.fault}"
        for one in survey_expectations(context.matrix, known, context.settings.root)
        if one.fault
    )
