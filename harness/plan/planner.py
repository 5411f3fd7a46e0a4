"""Checks over cells -> keyed tasks. Pure: everything read from disk is handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from harness.check import Check
from harness.errors import Location
from harness.matrix.cells import Cell
from harness.plan.facets import FacetInputs, facet_values
from harness.plan.host import HostFacts, device_skip
from harness.plan.key import facet_digests, task_key
from harness.plan.task import CellFacts, Entry, Plan, Task


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
) -> Plan:
    """One entry per (cell, check), one task per distinct key; `checks` must be in order of need."""
    entries: list[Entry] = []
    tasks: dict[str, Task] = {}
    for cell in cells:
        keys: dict[str, str] = {}
        for check in checks:
            skip = device_skip(cell, check, host)
            key = ""
            if skip is None:
                task = _task(cell, check, keys, inputs, code)
                key = keys[check.name] = task.key
                tasks.setdefault(key, task)
            entries.append(
                Entry(
                    cell_id=cell.id,
                    check=check.name,
                    tier=check.tier,
                    question=check.question,
                    key=key,
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
    )


def _task(
    cell: Cell, check: Check, keys: Mapping[str, str], inputs: FacetInputs, code: Mapping[str, str]
) -> Task:
    facets = facet_values(cell, check.facets, inputs)
    digests = facet_digests(facets)
    return Task(
        key=task_key(check, code[check.name], digests),
        check=check,
        facets=facets,
        facet_digests=digests,
        code_digest=code[check.name],
        needs=tuple(keys[need] for need in check.needs),
        expected_s=check.expected_s,
    )


def cell_facts(cell: Cell) -> CellFacts:
    """What reports say of a cell; places name the file alone, so that two checkouts agree."""

    def place(where: Location) -> str:
        return str(Location(PurePath(where.file).name, where.line, where.column))

    return CellFacts(
        id=cell.id,
        title=cell.title,
        stack=cell.stack,
        device=cell.device,
        axes=dict(cell.axes),
        provenance={axis: place(where) for axis, where in cell.provenance.items()},
        findings=tuple({"what": finding.what, "source": finding.source} for finding in cell.findings),
        recipe=cell.recipe,
    )
