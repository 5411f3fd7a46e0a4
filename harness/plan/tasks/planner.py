"""Makes a plan from cells and checks, with one task per distinct key. Reads nothing from disk."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from harness.check import Check
from harness.errors import Location
from harness.ledger.plan_record import CellFacts, CellFinding, CodeRecord, PlanEntry, Skip, SkipCause
from harness.matrix.model.cell import Cell
from harness.outcome import Status
from harness.plan.keys.facets import FacetInputs
from harness.plan.keys.keyring import Facet, Keyring
from harness.plan.tasks.host_capabilities import HostFacts, device_skip
from harness.plan.tasks.task import Plan, Task


def make_plan(
    cells: Sequence[Cell],
    checks: Sequence[Check],
    *,
    profile: str,
    matrix_digest: str,
    inputs: FacetInputs,
    code: Mapping[str, str],
    host: HostFacts,
    notices: tuple[str, ...] = (),
    without: Mapping[str, str] | None = None,
    code_record: CodeRecord | None = None,
) -> Plan:
    """One entry per cell and check, and one task per distinct key.

    checks: in an order in which each follows its dependencies. code: check -> digest of its code.
    code_record: the modules that these digests are computed from. without: check -> why the profile leaves it
    out; it and the checks that depend on it are not run.
    """
    left_out = _with_dependents(without or {}, checks)
    entries: list[PlanEntry] = []
    tasks: dict[str, Task] = {}
    ring = Keyring(checks, inputs, code)
    keys = ring.keys(cells)
    for number, cell in enumerate(cells):
        facets = ring.facets(cell)
        planned_keys: dict[str, str] = {}
        for check in checks:
            key = keys[check.name][number]
            skip = _skip(cell, check, host, facets, left_out, key)
            if skip is None:
                planned_keys[check.name] = key
                if key not in tasks:
                    tasks[key] = _task(key, check, planned_keys, facets, code[check.name])
            entries.append(
                PlanEntry(
                    cell_id=cell.id,
                    check=check.name,
                    tier=check.tier,
                    question=check.question,
                    key="" if skip else key,
                    skip=skip,
                )
            )
    return Plan(
        profile=profile,
        matrix_digest=matrix_digest,
        cells=tuple(cell_facts(cell) for cell in cells),
        entries=tuple(entries),
        tasks=dict(sorted(tasks.items(), key=lambda item: item[1].check.tier.rank)),
        notices=notices,
        code=code_record or CodeRecord(),
    )


def restrict_plan(plan: Plan, cell_ids: Collection[str]) -> Plan:
    """The part of a plan for some of its cells."""
    entries = tuple(entry for entry in plan.entries if entry.cell_id in cell_ids)
    keys = {entry.key for entry in entries}
    return replace(
        plan,
        cells=tuple(cell for cell in plan.cells if cell.id in cell_ids),
        entries=entries,
        tasks={key: task for key, task in plan.tasks.items() if key in keys},
    )


def _with_dependents(without: Mapping[str, str], checks: Sequence[Check]) -> dict[str, str]:
    left_out = dict(without)
    for check in checks:
        missing = next((need for need in check.needs if need in left_out), None)
        if missing and check.name not in left_out:
            left_out[check.name] = f"it depends on {missing}, which is not run: {left_out[missing]}"
    return left_out


def _skip(
    cell: Cell,
    check: Check,
    host: HostFacts,
    facets: Mapping[str, Facet],
    left_out: Mapping[str, str],
    key: str,
) -> Skip | None:
    """Why a check of a cell is not run. Its reason names the device first, as that is what users can change;
    its cause and key are the same on every host."""
    missing = device_skip(cell, check, host, facets)
    inapplicable = check.applies({name: facets[name].value for name in check.facets})
    if inapplicable:
        # Its status is unsupported, never pass; a host with the device could not run it either.
        return Skip(status=Status.UNSUPPORTED, reason=inapplicable, cause=SkipCause.CHECK)
    if check.name in left_out:
        reasons = [missing.reason] if missing else []
        reason = ", and ".join([*reasons, left_out[check.name]])
        return Skip(status=Status.NOT_RUN, reason=reason, cause=SkipCause.PROFILE, key=key)
    return replace(missing, cause=SkipCause.HOST, key=key) if missing else None


def _task(key: str, check: Check, keys: Mapping[str, str], facets: Mapping[str, Facet], code: str) -> Task:
    return Task(
        key=key,
        check=check,
        facets={name: facets[name].value for name in check.facets},
        facet_digests={name: facets[name].digest for name in check.facets},
        code_digest=code,
        needs=tuple(keys[name] for name in check.inputs if name in keys),
        expected_s=check.expected_s,
    )


def cell_facts(cell: Cell) -> CellFacts:
    """The facts about a cell for reports. Locations have no folder, so that they are equal in all
    checkouts."""
    return CellFacts(
        id=cell.id,
        title=cell.title,
        stack=cell.stack,
        device=cell.device,
        axes=dict(cell.axes),
        provenance={axis: _place(where) for axis, where in cell.provenance.items()},
        findings=tuple(CellFinding(what=finding.what, source=finding.source) for finding in cell.findings),
        recipe=cell.recipe,
    )


@functools.lru_cache(maxsize=4096)
def _place(where: Location) -> str:
    return str(Location(PurePath(where.file).name, where.line, where.column))
