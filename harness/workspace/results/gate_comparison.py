"""The inputs of `npu-matrix gate`: the outcomes of this checkout's plan and of its base."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import InfrastructureError, InputError
from harness.ledger.plan_record import PlanEntry, PlanRecord, SkipCause
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State, Status
from harness.plan.change.revision import checkout_revision
from harness.plan.keys.key import key_changes
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.evidence_bound import strongest_evidence
from harness.plan.tasks.task import Plan
from harness.run.scheduling.altered_outcomes import altered_outcomes
from harness.settings import DEFAULT_PROFILE, Settings
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.verdict.expectations import survey_expectations
from harness.verdict.gate.blame import place_to_blame
from harness.verdict.gate.changed_parts import ChangedParts, changed_parts
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
from harness.workspace.planning.index_review import IndexReview, review_index
from harness.workspace.planning.open_plan import PlanContext, expectations, open_plan
from harness.workspace.planning.other_host_plans import add_outcomes_of_other_hosts
from harness.workspace.planning.revision_comparison import expected_otherwise
from harness.workspace.results.gate_base import (
    GateBase,
    base_verdicts,
    expected_on_base,
    names_on_base,
    open_gate_base,
    uncompared,
)
from harness.workspace.results.gate_scope import (
    CheckoutChange,
    absent_submodules,
    change_of_checkout,
    dropped_patches,
    gate_changes,
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
    """The plan that a gate judges: the whole profile, and what the user selected beyond it; and its base.

    selected: the entries that the user selected, None for all. own_keys: the tasks that this host can run.
    index: what the package index says about the archives of the outcomes.
    """

    context: PlanContext
    selected: frozenset[CellCheck] | None
    own_keys: frozenset[str]
    base: GateBase
    index: IndexReview


def open_gate_plan(settings: Settings, ledger: Ledger, options: GateOptions) -> GatePlan:
    """Plan the whole profile, because a change can affect more than the user selects with --only and --check.

    InputError if these select nothing, or if there is no such base.
    """
    own = open_plan(settings)
    context, hosts = add_outcomes_of_other_hosts(own, ledger, (), ())
    own_keys = frozenset(own.plan.tasks)
    selected = None
    if options.only or options.checks:
        own_part = open_plan(settings, only=options.only, checks=options.checks)
        part, part_hosts = add_outcomes_of_other_hosts(own_part, ledger, options.only, options.checks)
        chosen = {(entry.cell_id, entry.check): entry for entry in part.plan.entries}
        entries = tuple(chosen.get((entry.cell_id, entry.check), entry) for entry in context.plan.entries)
        tasks = {**context.plan.tasks, **part.plan.tasks}
        context = replace(context, plan=replace(context.plan, entries=entries, tasks=tasks))
        hosts = {**hosts, **part_hosts}
        own_keys |= frozenset(own_part.plan.tasks)
        selected = frozenset(chosen)
    return GatePlan(
        context=context,
        selected=selected,
        own_keys=own_keys,
        base=open_gate_base(context, hosts, ledger, options.base),
        index=review_index(context.plan, ledger),
    )


def gate_inputs(planned: GatePlan, ledger: Ledger, options: GateOptions) -> GateInputs:
    """Everything that the gate judges: outcomes of this plan and of its base, flakes, causes of changes."""
    context, plan, base = planned.context, planned.context.plan, planned.base
    attempts = read_attempts(plan, ledger)
    on_base = base_verdicts(base, ledger)
    head_entries = {(entry.cell_id, entry.check): entry for entry in plan.entries}
    base_keys = {name: _key(one, head_entries.get(name)) for name, one in base.plan.entries_by_name.items()}
    # Another archive of an unchanged key is not the fault of the change.
    replaced = {key: why for key, why in planned.index.outdated.items() if key not in base_keys.values()}
    altered = altered_outcomes(plan.tasks, attempts.outcomes, ledger.artifacts)
    outdated = {**outdated_attempts(plan, attempts), **altered, **replaced}
    expected = expectations(context.matrix, plan.profile)
    head = verdicts_from_ledger(plan, attempts.outcomes, expected, outdated)
    changed = change_of_checkout(context.settings, base.revision) if base.revision else None
    changes, places = _blame(context, base.plan)
    parts = _parts(plan, base, head, on_base)
    scope = _scope(context, base, head_entries, changed, planned.index)
    return GateInputs(
        base_name=base.name,
        head=head,
        head_keys={name: _key(entry, None) for name, entry in head_entries.items()},
        logs=_logs(context, head, ledger),
        base={name: one for name, one in on_base.items() if one.status in COMPARABLE},
        base_keys=base_keys,
        base_statuses={
            name: one.status
            for name, one in on_base.items()
            if (one.outcome and not one.outcome.trust.claimed) or one.status is Status.BLOCKED
        },
        base_expected=expected_on_base(base, head),
        expected_otherwise=_expected_otherwise(context, base, head_entries),
        evidence_changes=_evidence_changes(base.plan, plan.record()),
        selected=planned.selected,
        hardware=frozenset(name for name, one in head_entries.items() if _cause(one) is SkipCause.HOST),
        awaiting=options.awaiting,
        accept_removed=options.accept_removed,
        flakes=flake_decisions(plan, attempts, ledger, now=time.time()),
        changes=changes,
        places=places,
        problems=_problems(context, changed),
        unverified=(
            *uncompared(context, base),
            *dropped_patches(context.settings, scope.unread_files, base.plan, options.accept_removed),
        ),
        notices=(*plan.notices, *_verified_in_part(parts)),
        scope=scope,
        impacted_only=options.impacted_only,
        profile=plan.profile,
        options=context.settings.flags(*REPRODUCE_OPTIONS),
        base_command=_base_command(context, options.base) if base.revision else "",
        base_cells=base.cells,
        mirrors={
            name: repository
            for name, verdict in head.items()
            if verdict.status is Status.NOT_RUN and (repository := _missing_sources(plan, verdict.key))
        },
        parts=parts,
    )


def _parts(
    plan: Plan, base: GateBase, head: Mapping[CellCheck, Verdict], on_base: Mapping[CellCheck, Verdict]
) -> dict[CellCheck, ChangedParts]:
    """The changed parts of checks that have no verdict as a whole, here or on the base."""
    tasks = base.plan.tasks_by_key
    found: dict[CellCheck, ChangedParts] = {}
    for name, verdict in head.items():
        before, after = base.plan.entries_by_name.get(name), plan.tasks.get(verdict.key)
        outcome = _completed(verdict)
        if outcome is None or before is None or after is None or before.key not in tasks:
            continue
        old = on_base.get(name)
        if verdict.status is not Status.NOT_RUN and (old is None or old.status is not Status.NOT_RUN):
            continue
        parts = changed_parts(after.check, tasks[before.key], after.record(), outcome, _completed(old))
        if parts is not None:
            found[name] = parts
    return found


def _completed(verdict: Verdict | None) -> Outcome | None:
    """The outcome of a verdict, if its measurements can be used."""
    outcome = verdict.outcome if verdict else None
    usable = outcome is not None and outcome.state is State.COMPLETED and not outcome.trust.claimed
    return outcome if usable else None


def _verified_in_part(parts: Mapping[CellCheck, ChangedParts]) -> tuple[str, ...]:
    return tuple(f"{' '.join(name)}: {one.verified}" for name, one in parts.items() if one.verified)


def _expected_otherwise(
    context: PlanContext, base: GateBase, entries: Mapping[CellCheck, PlanEntry]
) -> frozenset[CellCheck]:
    """The entries with a key whose expected failure the change modifies."""
    names = [name for name, entry in entries.items() if _key(entry, None)]
    return expected_otherwise(context, base.at, names_on_base(base, names)) if base.at else frozenset()


def _problems(context: PlanContext, changed: CheckoutChange | None) -> tuple[str, ...]:
    """What blocks the change by itself."""
    by_name = {check.name for check in all_checks()}
    return (
        *_idle_expectations(context, by_name),
        *import_problems(context.settings, changed.files if changed else ()),
        *(stored_problems(context.settings, changed) if changed else ()),
    )


def _base_command(context: PlanContext, base: str) -> str:
    """The command that runs the base."""
    profile = context.plan.profile
    chosen = () if profile == DEFAULT_PROFILE else ("--profile", profile)
    flags = context.settings.flags(*REPRODUCE_OPTIONS)
    return shlex.join(["npu-matrix", *flags, *chosen, "gate", "--base", base, "--run-base"])


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
    """The repositories of the commits that a task reads and no mirror has; "" if there are none."""
    facets = plan.tasks[key].facets if key in plan.tasks else {}
    folders = mirror_folders()
    missing = [
        str(tree["repository"])
        for tree in _commits(facets)
        if tree.get("repository") and find_mirror(folders, str(tree["commit"])) is None
    ]
    return ", ".join(dict.fromkeys(missing))


def _commits(facet: Any) -> Iterator[Mapping[str, Any]]:
    """The upstream trees that are commits, at any depth of a facet."""
    if isinstance(facet, Mapping):
        if facet.get("kind") == "commit":
            yield facet
        for value in facet.values():
            yield from _commits(value)
    elif isinstance(facet, list | tuple):
        for value in facet:
            yield from _commits(value)


def _evidence_changes(base: PlanRecord, here: PlanRecord) -> dict[CellCheck, tuple[Evidence, Evidence]]:
    before, after = _evidence_by_name(base), _evidence_by_name(here)
    return {
        name: (before[name], one) for name, one in after.items() if name in before and before[name] is not one
    }


def _evidence_by_name(plan: PlanRecord) -> dict[CellCheck, Evidence]:
    """The strongest evidence that each entry with a key can have; this host may lack the device for it."""
    tasks = plan.tasks_by_key
    return {
        name: Evidence.HARDWARE if _cause(entry) is SkipCause.HOST else strongest_evidence(tasks[entry.key])
        for name, entry in plan.entries_by_name.items()
        if _cause(entry) is SkipCause.HOST or entry.key in tasks
    }


def _scope(
    context: PlanContext,
    base: GateBase,
    head_entries: Mapping[CellCheck, PlanEntry],
    changed: CheckoutChange | None,
    index: IndexReview,
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
    unread = unread_files(context.settings, files, context.plan.record(), base.plan)
    notes: tuple[str, ...] = ()
    if base.at and base.at.matrix:
        notes = matrix_changes(context.matrix, base.at.matrix, context.plan.profile)
    elif base.at:
        notes = ("not looked at: changes of profiles and runners; the matrix of the base cannot be read",)
    return GateScope(
        profile=context.plan.profile,
        commit=base.revision.commit if base.revision else "",
        is_head=base.revision is not None and not files and base.revision.commit == _head(context.settings),
        changed_files=len(files) if changed else None,
        unread_files=unread,
        left_out=tuple(name for name, entry in head_entries.items() if changed_and_left_out(name, entry)),
        notes=(
            *gate_changes(unread),
            *plan_changes(context.plan.record(), base.plan),
            *notes,
            f"package index: {index}",
            *missing_origins(context.settings),
            *(absent_submodules(context.settings, base.revision) if base.revision else ()),
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
