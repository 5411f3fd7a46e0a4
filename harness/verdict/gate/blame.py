"""Finds the line of the repository that sets an input which a change modified, for annotations."""

from __future__ import annotations

import re

from harness.ledger.plan_record import CellFacts, TaskRecord
from harness.plan.keys.key import KeyChange
from harness.verdict.gate.gate_report import Place

_WHERE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::\d+)?")
# Facet -> the axes that determine it, most specific first. Other facets depend on the whole cell.
AXES = {
    "facets.verl_tree": ("verl",),
    "facets.platform": ("python", "arch"),
    "facets.device": ("device", "soc", "cann"),
}


def place_to_blame(changes: tuple[KeyChange, ...], after: TaskRecord, cell: CellFacts, matrix: str) -> Place:
    """The changed patch, else the line of matrix.yaml with the changed version, else the line of the cell."""
    for change in changes:
        patch = _patch(change, after)
        if patch:
            return Place(file=patch)
    for change in changes:
        for axis in _axes(change, cell):
            place = _place(cell.provenance.get(axis, ""), matrix)
            if place:
                return place
    lines = [place.line for text in cell.provenance.values() if (place := _place(text, matrix))]
    return Place(file=matrix, line=min(lines, default=1))


def _patch(change: KeyChange, after: TaskRecord) -> str:
    found = re.match(r"facets\.(?P<facet>patches\[[^\]]+\])(?:\.(?P<id>.+)|\[(?P<index>\d+)\])?", change.part)
    if not found:
        return ""
    patches = after.facets.get(found["facet"], [])
    name = (found["id"] or "").rpartition(".")[0] or found["id"]
    for index, patch in enumerate(patches):
        if patch.get("id") == name or found["index"] == str(index):
            return str(patch.get("file", ""))
    return ""


def _axes(change: KeyChange, cell: CellFacts) -> tuple[str, ...]:
    for facet, axes in AXES.items():
        if change.part.startswith(facet):
            return axes
    words = f"{change.part} {change.before} {change.after}"
    return tuple(axis for axis in cell.provenance if axis.replace("_", "-") in words or axis in words)


def _place(provenance: str, matrix: str) -> Place | None:
    found = _WHERE.fullmatch(provenance)
    # A provenance contains the name of the matrix file without its folder.
    return Place(file=matrix, line=int(found["line"])) if found else None
