"""The base of a gate: a git revision, a run or another ledger, with its plan and its verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.devices.host.host_inspection import HostReport
from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RunRecord
from harness.ledger.store import FILE_NAME, Ledger
from harness.plan.change.revision import (
    AmbiguousRevisionError,
    Revision,
    is_in_change,
    resolve_revision,
)
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan, plan_of_record
from harness.settings import Settings
from harness.verdict.gate.gate_report import CellCheck
from harness.verdict.ledger_outcomes import read_attempts, verdicts_from_ledger
from harness.verdict.verdict import Verdict
from harness.workspace.open_ledger import ledger_file, read_ledger
from harness.workspace.planning.open_plan import PlanContext
from harness.workspace.planning.other_host_plans import join_plans
from harness.workspace.planning.revision_comparison import (
    BaseNames,
    RevisionPlan,
    declared_failures,
    plan_of_revision,
)
from harness.workspace.results.gate_scope import changed_evidence_settings


@dataclass(frozen=True, kw_only=True)
class GateBase:
    """The base: its plan, with the cell ids of this checkout.

    stored: the verdicts of a base that is a run or another ledger. at: None for such a base. cells: cell id
    of this checkout -> cell id on the base, where they differ.
    """

    name: str
    plan: PlanRecord
    stored: Mapping[CellCheck, Verdict] | None = None
    revision: Revision | None = None
    at: RevisionPlan | None = None
    cells: Mapping[str, str] = field(default_factory=dict)


def open_gate_base(
    context: PlanContext, hosts: Mapping[str, HostReport], ledger: Ledger, base: str
) -> GateBase:
    """The base with this name: another ledger, a run of this ledger, or a git revision.

    hosts: cell id -> the host that ran it, if not this one. InputError if there is no such base.
    """
    settings = context.settings
    path = Path(base)
    run = ledger.run(base)
    stored = _has_ledger(path) or run is not None
    try:
        revision = resolve_revision(settings.root, base)
    except AmbiguousRevisionError:
        raise
    except (InputError, InfrastructureError):
        if _has_ledger(path):
            return _base_of_ledger(context, base, foreign_ledger(settings, path))
        if run is not None:
            return _base_of_run(context, f"run {base}", run, ledger)
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
    here = plan_of_revision(context, revision, (), ())
    socs = {host.soc: host for host in hosts.values()}
    plans = {
        soc: plan_of_revision(replace(context, host=host), revision, (), ()).plan
        for soc, host in socs.items()
    }
    plan = join_plans(here.plan, {cell: plans[host.soc] for cell, host in hosts.items()})
    plan, cells = _with_cell_ids_of(plan, context.plan)
    return GateBase(
        name=str(revision),
        plan=plan,
        revision=revision,
        at=here,
        cells=cells,
    )


def foreign_ledger(settings: Settings, path: Path) -> Path:
    """The ledger file at `path`; InputError if git tracks it here, because a change could bring it along."""
    file = ledger_file(path)
    if is_in_change(settings.root, file):
        raise InputError(
            "this ledger is a file of the checkout, so the change itself could have brought it",
            where=Location(path),
            why="outcomes come from runs, not from the change",
            fix="remove it from git, and download the ledgers of other jobs outside of the checkout",
        )
    return file


def base_verdicts(base: GateBase, ledger: Ledger) -> Mapping[CellCheck, Verdict]:
    """The verdicts on the entries of the base; those of a revision by the outcomes in the ledger now."""
    return _verdicts_on(base.plan, ledger, None) if base.stored is None else base.stored


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


def _base_of_ledger(context: PlanContext, base: str, file: Path) -> GateBase:
    with read_ledger(context.settings, file) as other:
        run = other.latest_run()
        if run is None:
            raise InputError("this ledger has no run", where=Location(file), fix="name a ledger with a run")
        return _base_of_run(context, f"{base} (run {run.run_id})", run, other)


def _base_of_run(context: PlanContext, name: str, run: RunRecord, ledger: Ledger) -> GateBase:
    """A run as the base; InputError if its plan cannot be read."""
    _stored_plan(run.plan)
    plan, cells = _with_cell_ids_of(run.plan, context.plan)
    return GateBase(name=name, plan=plan, stored=_verdicts_on(plan, ledger, run.run_id), cells=cells)


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


def names_on_base(base: GateBase, names: Collection[CellCheck]) -> BaseNames:
    """(cell, check) of this checkout -> the same on the base."""
    return {(cell, check): (base.cells.get(cell, cell), check) for cell, check in names}


def expected_on_base(base: GateBase, names: Collection[CellCheck]) -> dict[CellCheck, str] | None:
    """(cell, check) -> where the base declares an expected failure; None if that is unknown."""
    found = declared_failures(base.at, names_on_base(base, names)) if base.at else None
    return None if found is None else {name: one.where for name, one in found.items()}


def uncompared(context: PlanContext, base: GateBase) -> tuple[str, ...]:
    """What could not be compared with a base that is a revision; it blocks the change."""
    if base.at is None:
        return ()
    found = changed_evidence_settings(context.settings, base.at.settings)
    if base.at.matrix is None and base.at.expected is None:
        what = (
            f"not compared: the expected failures of {base.name}, because neither this version nor its own "
            "can list them. Let a change that only converts matrix.yaml be merged first"
        )
        found = (*found, what)
    return found
