"""What `npu-matrix explain` shows of a cell or of a combination of versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.convergence.recipes.recipe_twin import LeftOut
from harness.matrix.model.cell import Cell, KnownInconsistency
from harness.plan.feasibility.exclusion import Explanation, RuleViolation
from harness.plan.keys.facets import FACETS, facet_values, origins
from harness.serialisation import JsonValue, json_form, json_object
from harness.settings import Settings
from harness.workspace.planning.open_plan import PlanContext, facet_inputs, open_plan
from harness.workspace.planning.plan_estimates import PlanEstimates, estimate_plan, total_estimate
from harness.workspace.planning.plan_history import read_history
from harness.workspace.planning.plan_selection import relative_location
from harness.workspace.planning.recipe_selection import cell_launch

#: Longer facet values are cut in the text; --json has all of them.
LONGEST = 90


@dataclass(frozen=True, kw_only=True)
@json_form(where="from")
class AxisValue:
    """The value of an axis, and where matrix.yaml states it."""

    value: str
    where: str


@dataclass(frozen=True, kw_only=True)
class ExplainedCheck:
    """One check of the cell. known: whether a stored outcome is reused."""

    check: str
    question: str
    key: str
    not_run: str
    known: bool


@dataclass(frozen=True, kw_only=True)
class ExplainedPin:
    """A pin, without its location."""

    requirement: str
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ExplainedFinding:
    """A contradiction in the source of a stack, or a violated constraint or table of matrix.yaml."""

    what: str
    source: str
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class ExplainedCell:
    """A cell with the origin of its versions, as `explain` prints it (schema `npu-matrix.explain`).

    left_out: the parts of its recipe that the scaled-down twin does not have.
    """

    cell: str
    title: str
    stack: str
    profiles: tuple[str, ...]
    axes: Mapping[str, AxisValue]
    pins: tuple[ExplainedPin, ...]
    findings: tuple[ExplainedFinding, ...]
    facets: Mapping[str, JsonValue]
    facets_from: Mapping[str, tuple[str, ...]]
    checks: tuple[ExplainedCheck, ...]
    left_out: tuple[LeftOut, ...]
    estimates: PlanEstimates


def violation_json(violation: RuleViolation, root: Path) -> dict[str, str]:
    """A rule that excludes a combination, with its location relative to the checkout."""
    return {**vars(violation), "where": relative_location(violation.where, root)}


def combination_json(found: Explanation, root: Path) -> dict[str, object]:
    """The explanation of a combination of versions as JSON (schema npu-matrix.explain-axes)."""
    return {
        "schema": {"name": "npu-matrix.explain-axes", "version": 1},
        "axes": dict(found.axes),
        "valid": bool(found.cells),
        "violated": [violation_json(violation, root) for violation in found.violated],
        "contradiction": [violation_json(violation, root) for violation in found.contradiction],
        "cells": [cell.id for cell in found.cells],
        "nearest": [
            {"cell": near.cell.id, "title": near.cell.title, "changes": near.changes}
            for near in found.nearest
        ],
    }


def combination_lines(found: Explanation, root: Path) -> list[str]:
    """The explanation of a combination of versions as text."""
    combination = " ".join(f"{axis}={value}" for axis, value in found.axes.items())
    if found.cells:
        shown = [f"  {cell.id}" for cell in found.cells[:5]]
        more = len(found.cells) - len(shown)
        lines = [
            f"{combination}: in {len(found.cells)} cells",
            *shown,
            *([f"  and {more} more"] if more else []),
        ]
    elif found.violated:
        lines = [f"{combination}: excluded by {len(found.violated)} rules"]
    elif found.contradiction:
        lines = [f"{combination}: excluded, because these rules together leave no value for the other axes"]
    else:
        lines = [f"{combination}: no rule excludes it, but no profile selects such a cell"]
    for violation in (*found.violated, *found.contradiction):
        lines.append(f"  {relative_location(violation.where, root)}: {violation.rule}")
        lines += [f"      {violation.what}"] if violation.what else []
        lines += [f"      because {violation.reason}", f"      proof: {violation.source}"]
    if found.nearest:
        lines += ["nearest valid cells:"]
    for near in found.nearest:
        changes = ", ".join(f"{axis} {old} -> {new}" for axis, (old, new) in near.changes.items())
        lines.append(f"  {near.cell.id}: {changes}")
    return lines


def explain_alone(settings: Settings, cell: Cell) -> ExplainedCell:
    """The explanation of a cell, with the estimates of a plan that has only this cell."""
    return explain_cell(open_plan(settings, choose=lambda _matrix: [cell]), cell)


def explain_cell(context: PlanContext, cell: Cell) -> ExplainedCell:
    """The versions, pins, facets and checks of a cell of the plan."""
    inputs = facet_inputs(context.settings, context.matrix)
    estimates = estimate_plan(context.plan, read_history(context))
    root = context.settings.root
    launch = cell_launch(context.settings, context.matrix, cell)
    return ExplainedCell(
        cell=cell.id,
        title=cell.title,
        stack=cell.stack,
        profiles=tuple(name for name in context.matrix.profiles if context.matrix.cells(name).get(cell.id)),
        axes={
            axis: AxisValue(value=value, where=relative_location(cell.provenance[axis], root))
            for axis, value in cell.axes.items()
        },
        pins=tuple(
            ExplainedPin(requirement=pin.requirement, reason=pin.reason, source=pin.source)
            for pin in cell.pins
        ),
        findings=tuple(
            ExplainedFinding(
                what=finding.what,
                source=finding.source,
                where=relative_location(finding.where, root) if finding.where else "",
            )
            for finding in _findings(context, cell)
        ),
        facets=json_object(facet_values(cell, tuple(FACETS), inputs)),
        facets_from={
            name: tuple(relative_location(where, root) for where in origins(name, cell, inputs))
            for name in FACETS
        },
        checks=tuple(
            ExplainedCheck(
                check=entry.check,
                question=entry.question,
                key=entry.key,
                not_run=entry.skip.reason if entry.skip else "",
                known=bool(entry.key) and entry.key not in estimates.tasks,
            )
            for entry in context.plan.entries
        ),
        left_out=launch.twin.left_out if launch and launch.twin else (),
        estimates=estimates,
    )


def _findings(context: PlanContext, cell: Cell) -> tuple[KnownInconsistency, ...]:
    """The findings of a stack; of any other cell, what the check `constraints` finds."""
    if cell.findings:
        return cell.findings
    matrix = context.matrix
    violated = matrix.violations.of(matrix.versions(cell.axes), cell.overrides)
    return tuple(violation.finding for violation in violated)


def explanation_lines(explained: ExplainedCell) -> list[str]:
    """The explanation of a cell as text."""
    profiles = ", ".join(explained.profiles)
    lines = [
        f"{explained.cell}: {explained.title}",
        f"in profiles: {profiles}" if profiles else "not planned: no profile selects it",
        "",
        "versions:",
    ]
    width = max(len(axis) for axis in explained.axes)
    lines += [f"  {axis:<{width}}  {one.value:<28} {one.where}" for axis, one in explained.axes.items()]
    lines += ["", "pins:"]
    lines += [f"  {pin.requirement}\n      because {pin.reason} ({pin.source})" for pin in explained.pins]
    if explained.findings:
        lines += ["", "known inconsistencies, violated constraints and unlisted versions:"]
        lines += [
            f"  {finding.what} ({', '.join(filter(None, (finding.where, finding.source)))})"
            for finding in explained.findings
        ]
    lines += ["", "facets (what checks read), and where they come from:"]
    for name, value in explained.facets.items():
        text = _value_text(value)
        lines.append(f"  {name:<20} {text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}")
        lines.append(f"  {'':<20} from {_location_text(explained.facets_from[name])}")
    lines += ["", "checks:"]
    for check in explained.checks:
        state = f"not run: {check.not_run}" if check.not_run else _cost(check, explained.estimates)
        lines.append(f"  {check.check:<12} {check.question}\n  {'':<12} {state}")
    if explained.left_out:
        lines += ["", "the scaled-down recipe (check recipe-twin) leaves out, and therefore does not answer:"]
        lines += [f"  {part.what}\n      {part.unanswered}" for part in explained.left_out]
    return [*lines, *explained.estimates.basis_lines()]


def _cost(check: ExplainedCheck, estimates: PlanEstimates) -> str:
    """The key of a check, and what running it takes."""
    if check.known:
        return f"key {check.key[:12]}, has a stored outcome"
    task = estimates.tasks[check.key]
    return f"key {check.key[:12]}, {total_estimate([task])} ({task.basis})"


def _value_text(value: JsonValue) -> str:
    """The value of a facet as short text, without its empty parts."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value_text(part)}" for name, part in value.items() if part) or "nothing"
    if isinstance(value, list):
        parts = [
            _value_text(part["id"] if isinstance(part, dict) and "id" in part else part) for part in value
        ]
        return " ".join(parts) or "none"
    return "none" if value is None else str(value)


def _location_text(locations: Sequence[str]) -> str:
    """Locations as text; consecutive ones in the same file name it once: `matrix.yaml:5:6, :7:8`."""
    parts, last = [], ""
    for location in locations:
        file, colon, position = location.partition(":")
        parts.append(f":{position}" if file == last and colon else location)
        last = file
    return ", ".join(parts) or "nothing: the cell has no such part"
